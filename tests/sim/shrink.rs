//! Makes a failing scenario smaller as long as it still fails: fewer requests, then smaller limits.

use super::fault::Caught;
use super::spec::{RequestSpec, Scenario};

/// The smallest scenario found, and how it fails.
pub fn shrink(mut scenario: Scenario, fails: &dyn Fn(&Scenario) -> Option<Caught>) -> (Scenario, Caught) {
    let mut caught = fails(&scenario).expect("only a failing scenario is shrunk");
    loop {
        let smaller = candidates(&scenario).into_iter().find_map(|smaller| Some((fails(&smaller)?, smaller)));
        let Some((found, smaller)) = smaller else { return (scenario, caught) };
        (caught, scenario) = (found, smaller);
    }
}

/// Scenarios that are simpler by one thing each; the biggest savings first.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut found = Vec::new();
    for index in 0..scenario.requests.len() {
        let mut smaller = scenario.clone();
        smaller.requests.remove(index);
        found.push(smaller);
    }
    for index in 0..scenario.requests.len() {
        for request in simpler(&scenario.requests[index]) {
            let mut smaller = scenario.clone();
            smaller.requests[index] = request;
            found.push(smaller);
        }
    }
    let depth = scenario.options.depth.depth_max;
    if depth > 1 {
        let mut smaller = scenario.clone();
        smaller.options.depth.depth_max = depth - 1;
        found.push(smaller);
    }
    found
}

fn simpler(request: &RequestSpec) -> Vec<RequestSpec> {
    let mut found = Vec::new();
    let mut add = |changed: bool, change: &dyn Fn(&mut RequestSpec)| {
        if changed {
            let mut smaller = request.clone();
            change(&mut smaller);
            found.push(smaller);
        }
    };
    add(request.choices > 1, &|smaller| smaller.choices -= 1);
    add(request.cancelled.is_some(), &|smaller| smaller.cancelled = None);
    add(request.constraint.is_some(), &|smaller| smaller.constraint = None);
    add(request.watch.is_some(), &|smaller| smaller.watch = None);
    add(request.logprobs.is_some(), &|smaller| smaller.logprobs = None);
    add(request.broken_one_in > 0, &|smaller| smaller.broken_one_in = 0);
    add(!request.biases.is_empty(), &|smaller| smaller.biases.clear());
    add(request.min_tokens > 0, &|smaller| smaller.min_tokens = 0);
    add(request.sampling.counts_tokens(), &|smaller| smaller.sampling.presence_penalty = 0.0);
    add(!request.stop_ids.is_empty(), &|smaller| smaller.stop_ids.clear());
    add(!request.end_ids.is_empty(), &|smaller| smaller.end_ids.clear());
    add(request.max_tokens > 1, &|smaller| {
        smaller.max_tokens /= 2;
        smaller.min_tokens = smaller.min_tokens.min(smaller.max_tokens);
    });
    add(request.prompt.len() > 1, &|smaller| smaller.prompt.truncate(smaller.prompt.len() / 2));
    add(request.arrives > 0, &|smaller| smaller.arrives /= 2);
    found
}
