"""Writes the golden files of tests/golden from the reference model, or checks them.

usage: golden.py tiny [--check]    taps, states, logits, drafts of the tiny checkpoint -> tiny/taps.safetensors
       golden.py demo [--check]    prompts, logits, greedy ids, drafts of the demo model -> demo/prompts.{safetensors,json}
       golden.py exact             how many cases of models/demo/eval.jsonl the reference decodes exactly; writes nothing

--check computes everything again and compares: ids and texts exactly, numbers within 1e-4 of their root mean square.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference import ROOT, Reference, recording, relative

GOLDEN, DEMO = ROOT / "tests/golden", ROOT / "models/demo"
sys.path.insert(0, str(ROOT / "tools/demo-model"))

ROWS = [0, 1, 2, 3, 4, 62, 63, 64, 65, 126, 127, 128, 129, 130]   # the edges of the prompt and of the 64-row chunks
PROMPT, CHUNKS, DECODE = 131, [50, 50, 31], 6
GREEDY, TOP = 16, 5
SEED = 165             # of the tiny prompt: its argmax and its three drafts stand more than 1 above the second best
TOLERANCE = 1e-4


def ids_of(values) -> Tensor:
    return torch.tensor(values, dtype=torch.uint32)


def accepted(drafts: list[int], tokens: list[int]) -> int:
    """How many drafts stand before the first wrong one."""
    return next((n for n, (a, b) in enumerate(zip(drafts, tokens)) if a != b), min(len(drafts), len(tokens)))


def compare(found: dict[str, Tensor], file: Path) -> None:
    """Exits with a message if `found` is not what `file` holds."""
    wanted = load_file(file)
    wrong = [f"{n}: only in one of both" for n in sorted(found.keys() ^ wanted.keys())]
    worst = 0.0
    for name in sorted(found.keys() & wanted.keys()):
        a, b = found[name], wanted[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f"{name}: {a.dtype} {tuple(a.shape)}, the file has {b.dtype} {tuple(b.shape)}")
        elif not a.is_floating_point():
            if not torch.equal(a.long(), b.long()):
                wrong.append(f"{name}: other ids")
        else:
            worst = max(worst, relative(a, b))
            if relative(a, b) > TOLERANCE:
                wrong.append(f"{name}: differs by {relative(a, b):.1e}")
    print(f"{file.name}: {len(wanted)} tensors, worst difference {worst:.1e}")
    if wrong:
        sys.exit("\n".join(wrong))


def tiny() -> dict[str, Tensor]:
    """Every tensor of tiny/taps.safetensors."""
    reference = Reference(GOLDEN / "tiny")
    model, mtp, config = reference.model.model, reference.mtp, reference.config
    rng = np.random.Generator(np.random.PCG64(SEED))
    ids = rng.integers(0, config.vocab_size - 1, PROMPT).tolist()
    later = rng.integers(0, config.vocab_size - 1, DECODE).tolist()

    cache = reference.cache()
    with recording({f"layers.{i}.": layer for i, layer in enumerate(model.layers)}) as taps:
        hidden, logits = reference.run(ids, cache)
    print(f"recurrence against the chunked rule: worst {float(taps.pop('worst recurrence')):.1e}")
    taps |= {"embed": model.embed_tokens(torch.tensor(ids)), "final": hidden, "logits": logits}
    states = {}
    for i, kind in enumerate(config.layer_types):
        if kind == "linear_attention":
            states[f"layers.{i}.state"] = cache.get_recurrent_state(i, state_idx=0)[0].clone()
            states[f"layers.{i}.conv_state"] = cache.get_conv_state(i, state_idx=0)[0, :, -3:].T.clone()

    chosen = int(logits[-1].argmax())
    with recording({"mtp.": mtp.layers[0]}) as head:
        hooks = [mtp.fc.register_forward_pre_hook(lambda _, args: head.__setitem__("mtp.join", args[0][0])),
                 mtp.fc.register_forward_hook(lambda _, args, out: head.__setitem__("mtp.fc", out[0]))]
        head["mtp.final"] = reference.pairs(ids[1:] + [chosen], hidden)
        for hook in hooks:
            hook.remove()
    taps |= head
    drafts, draft_logits = reference.draft(ids, hidden, chosen)

    decode = torch.stack([reference.run([token], cache)[1][-1] for token in later])
    plain = reference.run(ids + later)[1][PROMPT:]
    print(f"decode against one long prompt: {relative(decode, plain):.1e}")
    cache, at = reference.cache(), 0
    for size in CHUNKS:
        chunked = reference.run(ids[at:at + size], cache)[1][-1]
        at += size
    print(f"chunked prefill against one prompt: {relative(chunked, logits[-1]):.1e}")
    for name, row in [("prompt", logits[-1]), *((f"draft {n + 1}", x) for n, x in enumerate(draft_logits))]:
        top = row.topk(2).values
        print(f"margin of the argmax, {name}: {float(top[0] - top[1]):.3f}")

    out = {name: rows[ROWS] for name, rows in taps.items()} | states
    out |= {"ids": ids_of(ids), "rows": ids_of(ROWS), "decode.ids": ids_of(later), "decode.logits": decode,
            "chunked.logits": chunked, "mtp.logits": draft_logits, "mtp.drafts": ids_of(drafts)}
    return {name: x.contiguous() for name, x in out.items()}


class Cases:
    """The held-out cases, rendered and encoded as for training."""

    def __init__(self):
        from tokenizers import Tokenizer
        import train
        self.train, self.template = train, train.template(DEMO / "chat_template.jinja")
        self.tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        self.all = [json.loads(line) for line in (DEMO / "eval.jsonl").read_text().splitlines()]

    def prompt(self, case: dict) -> tuple[str, list[int]]:
        """Everything up to the last assistant opening: (text, ids), the ids encoded piece by piece.

        The engine renders with add_generation_prompt and encodes the text in one go: both must come to the same.
        """
        last = {"role": "assistant", "content": "x", "reasoning_content": ""}
        pieces = self.train.segments(self.template, case["messages"] + [last], case["tools"], case["thinking"])[:-2]
        text = "".join(piece for piece, _ in pieces)
        ids = sum((self.tokenizer.encode(piece).ids for piece, _ in pieces), [])
        rendered = self.template.render(messages=case["messages"], tools=case["tools"], add_generation_prompt=True,
                                        enable_thinking=case["thinking"])
        assert text == rendered, f"rendered otherwise:\n{text!r}\n{rendered!r}"
        assert self.tokenizer.encode(text).ids == ids, f"encoded otherwise in one go: {text!r}"
        return text, ids

    def chosen(self) -> list[int]:
        """Twelve lines of eval.jsonl: every task, thinking and not in turn, one long needle, one tool result."""
        tasks = list(dict.fromkeys(case["task"] for case in self.all))
        def first(task, thinking, fits=lambda case: True):
            return next(n for n, c in enumerate(self.all) if (c["task"], c["thinking"]) == (task, thinking) and fits(c))
        def fits(task):
            if task == "needle":
                return lambda case: 256 < len(self.prompt(case)[1]) < 700
            if task == "memory":
                return lambda case: len(case["messages"]) >= 5
            return lambda case: case["messages"][-1]["role"] == "user"
        picks = [first(task, n % 2 == 0, fits(task)) for n, task in enumerate(tasks)]
        return picks + [first("tools", False, lambda case: case["messages"][-1]["role"] == "tool")]


def demo() -> tuple[dict[str, Tensor], list[dict]]:
    """Every tensor of demo/prompts.safetensors, and prompts.json."""
    reference, cases = Reference(DEMO), Cases()
    for case in cases.all:
        cases.prompt(case)
    print(f"{len(cases.all)} prompts: rendered alike both ways, encoded alike in one go and piece by piece")
    tensors: dict[str, Tensor] = {}
    logits, greedy, margins, drafts, top_ids, top_logits, texts = [], [], [], [], [], [], []
    for n, line in enumerate(cases.chosen()):
        case = cases.all[line]
        text, ids = cases.prompt(case)
        cache = reference.cache()
        hidden, out = reference.run(ids, cache)
        chosen, gaps = reference.greedy(out[-1], cache, GREEDY)
        drafted, draft_logits = reference.draft(ids, hidden, chosen[0])
        top = draft_logits.topk(TOP)
        tensors[f"prompts.{n}.ids"] = ids_of(ids)
        logits.append(out[-1]), greedy.append(chosen), margins.append(gaps)
        drafts.append(drafted), top_ids.append(top.indices.tolist()), top_logits.append(top.values)
        texts.append({"line": line, "task": case["task"], "thinking": case["thinking"], "tokens": len(ids), "text": text,
                      "greedy": cases.tokenizer.decode(chosen, skip_special_tokens=False),
                      "drafts_right": accepted(drafted, chosen[1:]),
                      "exact": case["greedy_exact"]})
        print(f"{n:2} {case['task']:10} {'thinking' if case['thinking'] else '        '} {len(ids):3} tokens, "
              f"smallest margin {min(gaps):.2f}, drafts {drafted} of {chosen[1:4]}")
    tensors |= {"logits": torch.stack(logits), "greedy": ids_of(greedy), "greedy.margins": torch.tensor(margins),
                "drafts": ids_of(drafts), "drafts.top_ids": ids_of(top_ids), "drafts.top_logits": torch.stack(top_logits)}
    return tensors, texts


def exact() -> None:
    """Cases decoded exactly, by task, beside what eval.jsonl says. Teacher forced: all argmaxes right = exact."""
    reference, cases, start = Reference(DEMO), Cases(), time.time()
    right: dict[str, list[int]] = {}
    for line, case in enumerate(cases.all):
        prompt = cases.prompt(case)[1]
        answer = cases.tokenizer.encode(case["reference"]).ids
        out = reference.run(prompt + answer[:-1])[1][len(prompt) - 1:]
        same = out.argmax(-1).tolist() == answer
        if same != case["greedy_exact"]:
            top = out.topk(2).values
            print(f"line {line}, {case['task']}: {same}, eval.jsonl says {case['greedy_exact']}; "
                  f"smallest margin {float((top[:, 0] - top[:, 1]).min()):.3f}")
        found, said = right.setdefault(case["task"], [0, 0])
        right[case["task"]] = [found + same, said + case["greedy_exact"]]
    for task, (found, said) in right.items():
        print(f"{task:10} {found:3} exact, eval.jsonl says {said}")
    print(f"{sum(f for f, _ in right.values())} of {len(cases.all)} in {time.time() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tiny", "demo", "exact"])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.what == "exact":
        return exact()
    if args.what == "tiny":
        tensors, file = tiny(), GOLDEN / "tiny/taps.safetensors"
    else:
        (tensors, texts), file = demo(), GOLDEN / "demo/prompts.safetensors"
        beside = file.with_suffix(".json")
        written = json.dumps(texts, indent=1, ensure_ascii=False) + "\n"
        if not args.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(written)
        elif beside.read_text() != written:
            sys.exit(f"{beside.name}: other texts")
    if args.check:
        compare(tensors, file)
    else:
        save_file(tensors, file)
        print(f"{file.name}: {len(tensors)} tensors, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
