"""Makes the tiny random checkpoint tests/golden/tiny/{config.json,model.safetensors}.

usage: tiny.py [--check]      --check: make it in memory and compare it, byte for byte, with the committed files

Three DeltaNet layers, one attention layer and the draft head, with the real head sizes. The weights are random but
not careless: activations stay near 1, no gate is saturated, attention has peaks, decay runs from slow to fast.
A_log, dt_bias and linear_attn.norm are stored as F32, as some exports do; the rest is bf16.
"""
import json
import math
import sys

import numpy as np
import torch
from safetensors.torch import save

from reference import ROOT

FOLDER = ROOT / "tests/golden/tiny"
HIDDEN, INTERMEDIATE, VOCAB = 128, 256, 320
HEADS, KV_HEADS, HEAD = 2, 1, 256
KEY_HEADS, VALUE_HEADS, LINEAR_HEAD, CONV = 2, 4, 128, 4
LAYERS = ["linear_attention"] * 3 + ["full_attention"]
CONV_DIM, VALUE_DIM = (2 * KEY_HEADS + VALUE_HEADS) * LINEAR_HEAD, VALUE_HEADS * LINEAR_HEAD
# Per value head: exp(A_log), and dt_bias. Log decay per token is about -0.007, -0.1, -0.7 and -5.
DECAY = [(0.05, -2.0), (0.5, -1.5), (2.0, -1.0), (8.0, -0.2)]

CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "language_model_only": True,
    "tie_word_embeddings": False,
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": VOCAB - 1,
        "eos_token_id": VOCAB - 1, "full_attention_interval": 4, "head_dim": HEAD, "hidden_act": "silu",
        "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": INTERMEDIATE, "layer_types": LAYERS,
        "linear_conv_kernel_dim": CONV, "linear_key_head_dim": LINEAR_HEAD, "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS, "linear_value_head_dim": LINEAR_HEAD, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": HEADS, "num_hidden_layers": len(LAYERS),
        "num_key_value_heads": KV_HEADS, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-6,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000.0, "rope_type": "default"},
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": VOCAB, "dtype": "bfloat16",
    },
}


def weights() -> dict[str, torch.Tensor]:
    rng = np.random.Generator(np.random.PCG64(20))
    out: dict[str, torch.Tensor] = {}

    def put(name: str, values: np.ndarray, dtype: torch.dtype = torch.bfloat16) -> None:
        out[name] = torch.from_numpy(values.astype(np.float32)).to(dtype)

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        put(name + ".weight", rng.standard_normal((rows, columns)) * gain / math.sqrt(columns))

    def norm(name: str, width: int = HIDDEN, mean: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> None:
        put(name + ".weight", mean + 0.2 * rng.standard_normal(width), dtype)

    def layer(at: str, kind: str, turn: int) -> None:
        norm(at + "input_layernorm")
        if kind == "linear_attention":
            mixer = at + "linear_attn."
            linear(mixer + "in_proj_qkv", CONV_DIM, HIDDEN)
            linear(mixer + "in_proj_z", VALUE_DIM, HIDDEN)
            linear(mixer + "in_proj_b", VALUE_HEADS, HIDDEN)
            linear(mixer + "in_proj_a", VALUE_HEADS, HIDDEN, 0.5)
            put(mixer + "conv1d.weight", 0.5 * rng.standard_normal((CONV_DIM, 1, CONV)))
            heads = [DECAY[(n + turn) % len(DECAY)] for n in range(VALUE_HEADS)]
            put(mixer + "A_log", np.log([a for a, _ in heads]) + 0.1 * rng.standard_normal(VALUE_HEADS), torch.float32)
            put(mixer + "dt_bias", [b for _, b in heads] + 0.1 * rng.standard_normal(VALUE_HEADS), torch.float32)
            norm(mixer + "norm", LINEAR_HEAD, 1.0, torch.float32)
            linear(mixer + "out_proj", HIDDEN, VALUE_DIM, 1.5)
        else:
            mixer = at + "self_attn."
            linear(mixer + "q_proj", HEADS * 2 * HEAD, HIDDEN)
            linear(mixer + "k_proj", KV_HEADS * HEAD, HIDDEN)
            linear(mixer + "v_proj", KV_HEADS * HEAD, HIDDEN)
            linear(mixer + "o_proj", HIDDEN, HEADS * HEAD, 3.0)
            norm(mixer + "q_norm", HEAD, 0.3)
            norm(mixer + "k_norm", HEAD, 0.3)
        norm(at + "post_attention_layernorm")
        linear(at + "mlp.gate_proj", INTERMEDIATE, HIDDEN)
        linear(at + "mlp.up_proj", INTERMEDIATE, HIDDEN)
        linear(at + "mlp.down_proj", HIDDEN, INTERMEDIATE, 1.5)

    put("model.language_model.embed_tokens.weight", rng.standard_normal((VOCAB, HIDDEN)))
    for i, kind in enumerate(LAYERS):
        layer(f"model.language_model.layers.{i}.", kind, i)
    norm("model.language_model.norm")
    linear("lm_head", VOCAB, HIDDEN, 3.0)
    linear("mtp.fc", HIDDEN, 2 * HIDDEN)
    layer("mtp.layers.0.", "full_attention", 0)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        norm("mtp." + name)
    return out


def main() -> None:
    files = {"config.json": (json.dumps(CONFIG, indent=1) + "\n").encode(),
             "model.safetensors": save(weights(), metadata={"format": "pt"})}
    for name, data in files.items():
        if "--check" in sys.argv[1:]:
            same = (FOLDER / name).read_bytes() == data
            print(f"{name}: {'same' if same else 'DIFFERS'}")
            if not same:
                sys.exit(1)
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_bytes(data)
            print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
