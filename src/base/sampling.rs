//! How a token is chosen, as plain validated data.

use super::{Error, Result};

/// Sampling of one choice. `Default` is greedy with everything off.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off; over prompt and output.
    pub repetition_penalty: f32,
    /// 0 is off; over output.
    pub presence_penalty: f32,
    /// 0 is off; over output.
    pub frequency_penalty: f32,
    pub seed: u64,
    pub choice: u32,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            choice: 0,
        }
    }
}

impl SamplingParams {
    /// Whether every value is in its range; the error names the field, the value and the range.
    pub fn validate(&self) -> Result<()> {
        check("temperature", self.temperature, 0.0, 100.0)?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(out_of_range("top_p", self.top_p, "above 0 and at most 1"));
        }
        check("min_p", self.min_p, 0.0, 1.0)?;
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0) {
            return Err(out_of_range("repetition_penalty", self.repetition_penalty, "above 0 and at most 100"));
        }
        check("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
    }

    /// Whether the choice needs to know which tokens came before.
    pub fn counts_tokens(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn check(field: &str, value: f32, low: f32, high: f32) -> Result<()> {
    if value >= low && value <= high { Ok(()) } else { Err(out_of_range(field, value, &format!("{low} to {high}"))) }
}

fn out_of_range(field: &str, value: f32, range: &str) -> Error {
    Error::input(format!("{field} is {value}, the range is {range}"), format!("give {field} a value in its range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let cases: [(SamplingParams, &str); 7] = [
            (SamplingParams { temperature: -0.1, ..Default::default() }, "temperature is -0.1"),
            (SamplingParams { temperature: f32::NAN, ..Default::default() }, "temperature is NaN"),
            (SamplingParams { top_p: 0.0, ..Default::default() }, "top_p is 0"),
            (SamplingParams { top_p: 1.5, ..Default::default() }, "top_p is 1.5"),
            (SamplingParams { min_p: 2.0, ..Default::default() }, "min_p is 2"),
            (SamplingParams { repetition_penalty: 0.0, ..Default::default() }, "repetition_penalty is 0"),
            (SamplingParams { presence_penalty: 2.5, ..Default::default() }, "presence_penalty is 2.5"),
        ];
        for (params, expected) in cases {
            let error = params.validate().expect_err(expected);
            assert!(error.what().starts_with(expected), "{error}");
        }
        SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.95, ..Default::default() }.validate().expect("valid");
    }
}
