//! Taking a request in, or refusing it with the numbers: everything that can be known before it runs.

use std::sync::Arc;

use super::Core;
use super::depth::DepthMeter;
use super::plan::SequenceId;
use super::request::{Counts, Refused, Request, RequestId};
use super::sequence::{Rules, Sequence};
use crate::base::{Error, SamplingParams};

impl Core {
    /// Queues a request. After this it ends with exactly one `Finished` per choice, whatever happens.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        let rules = Arc::new(self.rules(&request)?);
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let mut watches = request.watches.into_iter();
        let mut constraints = request.constraints.into_iter();
        for choice in 0..request.choices {
            let id = SequenceId { request: id, choice };
            let sequence = Sequence {
                id,
                rules: rules.clone(),
                sampling: SamplingParams { choice, ..request.sampling.clone() },
                watch: watches.next(),
                constraint: constraints.next(),
                tokens: request.prompt.clone(),
                computed: 0,
                counted: 0,
                held: None,
                drafts: Vec::new(),
                next_depth: 0,
                entry_stale: false,
                meter: DepthMeter::default(),
                last_run: 0,
                seen_at: None,
                counts: Counts { prompt_tokens: rules.prompt_tokens, ..Counts::default() },
            };
            self.sequences.insert(id, sequence);
            self.waiting.insert(id);
        }
        Ok(id)
    }

    /// Pages that a sequence of this length needs at most.
    pub fn needed_pages(&self, tokens_max: u32) -> u32 {
        self.pages.pages_for(tokens_max - 1 + self.options.ahead())
    }

    fn rules(&self, request: &Request) -> Result<Rules, Refused> {
        let options = &self.options;
        let tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(Refused::EmptyPrompt);
        }
        if tokens >= options.context_max {
            return Err(Refused::PromptTooLong { tokens, limit: options.context_max });
        }
        self.check_values(request)?;
        let max_tokens = request.max_tokens.min(options.context_max - tokens);
        let mut stop_ids = request.stop_ids.clone();
        if !request.ignore_end {
            stop_ids.extend(&request.end_ids);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let mut biases_before_min = request.biases.clone();
        biases_before_min.retain(|(token, _)| stop_ids.binary_search(token).is_err());
        biases_before_min.extend(stop_ids.iter().map(|token| (*token, f32::NEG_INFINITY)));
        let needed_pages = self.needed_pages(tokens + max_tokens);
        if needed_pages > options.pages {
            return Err(Refused::NeverFits { needed_pages, pool_pages: options.pages });
        }
        let waiting = self.waiting.len() as u32;
        if waiting + request.choices > options.queue_max {
            return Err(Refused::QueueFull { waiting, limit: options.queue_max });
        }
        Ok(Rules {
            prompt_tokens: tokens,
            max_tokens,
            min_tokens: request.min_tokens,
            stop_ids,
            logprobs: request.logprobs,
            biases: request.biases.clone(),
            biases_before_min,
            depth_max: request.depth_max.unwrap_or(u32::MAX).min(options.depth.depth_max),
        })
    }

    fn check_values(&self, request: &Request) -> Result<(), Refused> {
        let options = &self.options;
        request.sampling.validate().map_err(Refused::BadValue)?;
        let within = |field, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(bad(field, value, format!("{low} to {high}"))) }
        };
        within("n", request.choices, 1, options.choices_max)?;
        within("max_tokens", request.max_tokens, 1, u32::MAX)?;
        within("min_tokens", request.min_tokens, 0, request.max_tokens)?;
        within("top_logprobs", request.logprobs.unwrap_or(0), 0, options.logprobs_max)?;
        let ends = request.stop_ids.len() + request.end_ids.len() + request.biases.len();
        within("logit_bias, stop_token_ids and end tokens together", ends as u32, 0, options.biases_max)?;
        for (field, count) in [("watches", request.watches.len()), ("constraints", request.constraints.len())] {
            if count != 0 && count != request.choices as usize {
                return Err(bad(field, count as u32, format!("none or one per choice, {}", request.choices)));
            }
        }
        let bias_ids = request.biases.iter().map(|(token, _)| *token);
        let ids = request.prompt.iter().chain(&request.stop_ids).copied().chain(bias_ids);
        if let Some(id) = ids.into_iter().find(|id| *id >= options.vocabulary) {
            return Err(bad("token id", id, format!("below {}", options.vocabulary)));
        }
        if let Some((token, bias)) = request.biases.iter().find(|(_, bias)| !bias.is_finite()) {
            return Err(Refused::BadValue(Error::input(
                format!("the bias of token {token} is {bias}"),
                "give logit_bias finite values",
            )));
        }
        Ok(())
    }
}

fn bad(field: &str, value: u32, range: String) -> Refused {
    let remedy = format!("give {field} a value in its range");
    Refused::BadValue(Error::input(format!("{field} is {value}, the range is {range}"), remedy))
}
