//! How deep to draft: from the acceptance that a sequence has shown and from how many others share the step.
//!
//! A draft row pays if the tokens it is expected to bring are worth more than the time it adds. Acceptance is taken as
//! one rate r per sequence, so draft i stands with probability r^i. A wrong depth costs time, never a token.

/// Limits and prices of speculation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthOptions {
    /// Deepest chain; 0 is off, and then the draft head's cache is not kept either.
    pub depth_max: u32,
    /// Whether the depth follows acceptance; else it is always `depth_max`.
    pub adaptive: bool,
    /// Time that one more row adds to a step, in steps of one row.
    pub row_cost: f32,
    /// Time that one more draft pass adds, in steps of one row.
    pub pass_cost: f32,
}

impl DepthOptions {
    pub fn fixed(depth: u32) -> DepthOptions {
        DepthOptions { depth_max: depth, adaptive: false, row_cost: 0.02, pass_cost: 0.08 }
    }

    pub fn adaptive(depth_max: u32) -> DepthOptions {
        DepthOptions { adaptive: true, ..DepthOptions::fixed(depth_max) }
    }
}

/// What a new sequence is believed to accept.
const RATE_AT_START: f32 = 0.7;
/// Weight of one new observation.
const RATE_STEP: f32 = 1.0 / 16.0;
/// Steps without drafts after which one draft is tried, since acceptance cannot be seen without drafting.
const PROBE_STEPS: u32 = 32;

/// The measured acceptance of one sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthMeter {
    rate: f32,
    steps_without: u32,
}

impl Default for DepthMeter {
    fn default() -> DepthMeter {
        DepthMeter { rate: RATE_AT_START, steps_without: 0 }
    }
}

impl DepthMeter {
    /// The depth to draft for the next step, of `sequences` that share it.
    pub fn depth(&self, options: &DepthOptions, sequences: u32) -> u32 {
        if !options.adaptive {
            return options.depth_max;
        }
        let level_cost = options.row_cost * sequences as f32 + options.pass_cost;
        let mut cost = 1.0 + options.row_cost * sequences as f32;
        let (mut expected, mut stands, mut depth) = (1.0, 1.0, 0);
        while depth < options.depth_max {
            stands *= self.rate;
            if stands * cost <= expected * level_cost {
                break;
            }
            expected += stands;
            cost += level_cost;
            depth += 1;
        }
        let probe = self.steps_without >= PROBE_STEPS;
        if probe { depth.max(1).min(options.depth_max) } else { depth }
    }

    /// A step verified `drafts` drafts and `accepted` of them stood. Those behind the first wrong one say nothing.
    pub fn record(&mut self, drafts: u32, accepted: u32) {
        self.steps_without = if drafts == 0 { self.steps_without.saturating_add(1) } else { 0 };
        for _ in 0..accepted {
            self.rate += RATE_STEP * (1.0 - self.rate);
        }
        if accepted < drafts {
            self.rate -= RATE_STEP * self.rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: u32, drafts: u32, accepted: u32) -> DepthMeter {
        let mut meter = DepthMeter::default();
        for _ in 0..steps {
            meter.record(drafts, accepted);
        }
        meter
    }

    #[test]
    fn depth_follows_acceptance_and_company() {
        let options = DepthOptions::adaptive(8);
        let (good, bad) = (after(50, 3, 3), after(100, 1, 0));
        assert_eq!(good.depth(&options, 1), 8);
        assert_eq!(bad.depth(&options, 1), 0);
        assert!(DepthMeter::default().depth(&options, 16) < DepthMeter::default().depth(&options, 1));
        for sequences in 1..64 {
            assert!(good.depth(&options, sequences) >= good.depth(&options, sequences + 1), "more company, less depth");
        }
    }

    #[test]
    fn a_sequence_that_gave_up_tries_again() {
        let options = DepthOptions::adaptive(4);
        let mut meter = after(100, 1, 0);
        for _ in 0..PROBE_STEPS {
            assert_eq!(meter.depth(&options, 1), 0);
            meter.record(0, 0);
        }
        assert_eq!(meter.depth(&options, 1), 1);
        meter.record(1, 0);
        assert_eq!(meter.depth(&options, 1), 0);
    }

    #[test]
    fn a_fixed_depth_is_fixed_and_off_is_off() {
        assert_eq!(after(100, 1, 0).depth(&DepthOptions::fixed(3), 64), 3);
        let off = after(100, 0, 0);
        assert_eq!(off.depth(&DepthOptions::adaptive(0), 1), 0);
    }
}
