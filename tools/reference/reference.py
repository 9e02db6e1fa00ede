"""The reference model: transformers' own, in float32 on the CPU, with the draft head that it leaves out.

Loads a checkpoint as it lies on disk, records what the layers compute under the engine's tap names, and drafts.
It never touches the golden files: see golden.py.
"""
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf

ROOT = Path(__file__).resolve().parents[2]
DRAFTS = 3


class Mtp(nn.Module):
    """The draft head: one attention layer over (embedding of the next token, final hidden state) pairs."""

    def __init__(self, config: Qwen3_5TextConfig):
        super().__init__()
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            hf.Qwen3_5RMSNorm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.layers = nn.ModuleList([hf.Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])

    def forward(self, embedding: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        joined = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(joined), position_embeddings=rope, attention_mask=mask))


class Reference:
    """A checkpoint's model and draft head, widened to float32. One sequence at a time; ids are plain lists."""

    def __init__(self, folder: Path):
        settings = json.loads((folder / "config.json").read_text())["text_config"]
        settings = {k: v for k, v in settings.items() if k not in ("model_type", "dtype")}
        self.config = Qwen3_5TextConfig(**settings)
        self.config._attn_implementation = "eager"
        self.model = hf.Qwen3_5ForCausalLM(self.config).float().eval()
        self.mtp = Mtp(self.config).eval()
        weights = {}
        for file in sorted(folder.glob("model*.safetensors")):
            weights |= {name: w.float() for name, w in load_file(file).items()}
        main = {n.replace("model.language_model.", "model."): w for n, w in weights.items() if not n.startswith("mtp.")}
        self.model.load_state_dict(main)
        self.mtp.load_state_dict({n.removeprefix("mtp."): w for n, w in weights.items() if n.startswith("mtp.")})
        self.model.requires_grad_(False)
        self.mtp.requires_grad_(False)

    def cache(self) -> DynamicCache:
        return DynamicCache(config=self.config)

    def run(self, ids: list[int], cache: DynamicCache | None = None) -> tuple[Tensor, Tensor]:
        """(hidden after the final norm [T, H], logits [T, vocab]) of `ids` as the next tokens of `cache`."""
        hidden = self.model.model(input_ids=torch.tensor([ids]), cache=cache, use_cache=cache is not None).last_hidden_state[0]
        return hidden, self.model.lm_head(hidden)

    def greedy(self, logits: Tensor, cache: DynamicCache, count: int) -> tuple[list[int], list[float]]:
        """`count` ids from the last row's `logits` on, and how far each stood above the second best."""
        ids, margins = [], []
        for n in range(count):
            if n:
                logits = self.run(ids[-1:], cache)[1][-1]
            top = logits.topk(2).values
            ids.append(int(logits.argmax()))
            margins.append(float(top[0] - top[1]))
        return ids, margins

    def pairs(self, tokens: list[int], hidden: Tensor) -> Tensor:
        """The draft head over the pairs (h_{t-1}, x_t), t = 1, 2, ...: `hidden` holds h_0.., `tokens` x_1...

        Pair t has rotary position t, as in the engine; entry 0 does not exist.
        """
        length = len(tokens)
        embedding = self.model.model.embed_tokens(torch.tensor([tokens]))
        positions = torch.arange(1, length + 1).expand(3, 1, length)
        rope = self.model.model.rotary_emb(embedding, positions)
        mask = torch.full((1, 1, length, length), float("-inf")).triu(1)
        return self.mtp(embedding, hidden[None], rope, mask)[0]

    def draft(self, ids: list[int], hidden: Tensor, chosen: int) -> tuple[list[int], Tensor]:
        """(ids, logits [3, vocab]) of the drafts that follow `chosen`, the token that follows `ids`.

        Draft j > 1 takes the previous draft and the head's own previous output. All pairs are run again each time:
        the earlier ones do not change, so this equals appending to the head's KV cache.
        """
        tokens, drafts, logits = ids[1:] + [chosen], [], []
        for _ in range(DRAFTS):
            out = self.pairs(tokens, hidden)[-1:]
            logits.append(self.model.lm_head(out)[0])
            drafts.append(int(logits[-1].argmax()))
            tokens, hidden = tokens + drafts[-1:], torch.cat([hidden, out])
        return drafts, torch.stack(logits)


def recurrence(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The gated delta rule as it is defined, token by token, in float64: (o [T, Hv, dv], state [Hv, dk, dv])."""
    query, key, value, g, beta = (x[0].double() for x in (query, key, value, g, beta))
    repeat = value.shape[1] // key.shape[1]
    query, key = ((x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(repeat, 1) for x in (query, key))
    query = query * key.shape[-1] ** -0.5
    state, out = value.new_zeros(value.shape[1], key.shape[-1], value.shape[-1]), []
    for q, k, v, decay, b in zip(query, key, value, g.exp(), beta):
        state = decay[:, None, None] * state
        error = b[:, None] * (v - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * error[:, None, :]
        out.append(torch.einsum("hkv,hk->hv", state, q))
    return torch.stack(out), state


def relative(found: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference, relative to that of `wanted`."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


@contextmanager
def recording(layers: dict[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """While open, one forward pass leaves its intermediate rows, [T, width], under the tap names.

    `layers` maps a name's beginning ("layers.0.") to the decoder layer. Also checks each delta rule against
    `recurrence`. Two rows that the module tree does not show are taken where transformers calls plain functions.
    """
    taps: dict[str, Tensor] = {}
    current, handles = [""], []
    conv, rule, rope = hf.causal_conv1d_fn, hf.torch_chunk_gated_delta_rule, hf.apply_rotary_pos_emb

    def put(name: str, rows: Tensor) -> None:
        taps[current[0] + name] = rows[0].flatten(1).clone()

    def append(name: str, rows: Tensor) -> None:
        before = taps.get(current[0] + name)
        rows = rows[0].flatten(1)
        taps[current[0] + name] = rows.clone() if before is None else torch.cat([before, rows], 1)

    def conv_tapped(*args, **kwargs):
        out = conv(*args, **kwargs)
        put("conv", out.transpose(1, 2))
        return out

    def rule_tapped(query, key, value, g, beta, **kwargs):
        out, state = rule(query, key, value, g=g, beta=beta, **kwargs)
        put("gates", torch.cat([g, beta], -1))
        put("delta", out)
        plain, plain_state = recurrence(query, key, value, g, beta)
        worst = relative(out[0], plain)
        if state is not None:
            worst = max(worst, relative(state[0], plain_state))
        assert worst < 1e-4, f"{current[0]}delta: the chunked rule and the recurrence differ by {worst:.1e}"
        taps["worst recurrence"] = max(torch.tensor(worst), taps.get("worst recurrence", torch.tensor(0.0)))
        return out, state

    def rope_tapped(q, k, cos, sin, **kwargs):
        q, k = rope(q, k, cos, sin, **kwargs)
        # Per head the rotated query, then its gate; q_proj left both in taps as "gate" a moment ago.
        gate = taps.pop(current[0] + "gate").view(q.shape[2], q.shape[1], 2, -1)[:, :, 1]
        query = torch.stack([q[0].transpose(0, 1), gate], 2)
        put("qkv", torch.cat([query.flatten(1), k[0].transpose(0, 1).flatten(1)], 1)[None])
        return q, k

    def on(module: nn.Module, act) -> None:
        handles.append(module.register_forward_hook(lambda _, args, out: act(out)))

    def before(module: nn.Module, act) -> None:
        handles.append(module.register_forward_pre_hook(lambda _, args: act(args[0])))

    for prefix, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(lambda _, args, prefix=prefix: current.__setitem__(0, prefix)))
        on(layer.input_layernorm, lambda out: put("norm", out))
        on(layer.post_attention_layernorm, lambda out: put("norm_mlp", out))
        before(layer.mlp.down_proj, lambda x: put("act", x))
        on(layer.mlp, lambda out: put("mlp", out))
        on(layer, lambda out: put("out", out))
        if hasattr(layer, "linear_attn"):
            mixer = layer.linear_attn
            on(mixer.in_proj_qkv, lambda out: append("qkvz", out))
            on(mixer.in_proj_z, lambda out: append("qkvz", out))
            on(mixer.in_proj_b, lambda out: append("ba", out))
            on(mixer.in_proj_a, lambda out: append("ba", out))
            before(mixer.out_proj, lambda x: put("gated", x))
            on(mixer.out_proj, lambda out: put("mixed", out))
        else:
            mixer = layer.self_attn
            on(mixer.q_proj, lambda out: put("gate", out))
            on(mixer.v_proj, lambda out: put("v", out))
            before(mixer.o_proj, lambda x: put("attention", x))
            before(mixer.o_proj, lambda x: append("qkv", taps.pop(current[0] + "v")[None]))
            on(mixer.o_proj, lambda out: put("mixed", out))
    hf.causal_conv1d_fn, hf.torch_chunk_gated_delta_rule, hf.apply_rotary_pos_emb = conv_tapped, rule_tapped, rope_tapped
    try:
        yield taps
    finally:
        hf.causal_conv1d_fn, hf.torch_chunk_gated_delta_rule, hf.apply_rotary_pos_emb = conv, rule, rope
        for handle in handles:
            handle.remove()
