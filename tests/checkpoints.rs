//! Checkpoints built by code, for every variant that loads and every fault that must be refused.

#[path = "checkpoints/fixture.rs"]
mod fixture;
#[path = "checkpoints/recorder.rs"]
mod recorder;

use std::path::Path;

use deltic::base::{DType, Error, ErrorKind, ModelConfig, Result};
use deltic::weights::{Checkpoint, DeltaWeights, Inspection, Loaded, MixerWeights, Weight, inspect, load, random};
use fixture::*;
use recorder::Recorder;
use safetensors::Dtype;
use serde_json::{Value, json};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn load_folder(folder: &Path, backend: &mut Recorder) -> Result<Loaded> {
    let checkpoint = Checkpoint::open(folder)?;
    load(backend, &checkpoint.config()?, &checkpoint, &mut |_, _| {})
}

fn load_fixture(fixture: &Fixture, backend: &mut Recorder) -> Result<Loaded> {
    let folder = folder();
    fixture.write_single(folder.path(), published);
    load_folder(folder.path(), backend)
}

fn config_of(fixture: &Fixture) -> ModelConfig {
    ModelConfig::from_json(fixture.config.to_string().as_bytes()).unwrap()
}

fn delta_of(loaded: &Loaded) -> &DeltaWeights {
    match &loaded.weights.layers[0].mixer {
        MixerWeights::DeltaNet(delta) => delta,
        MixerWeights::Attention(_) => panic!("layer 0 is DeltaNet"),
    }
}

fn assert_refused(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Input, "{error}");
    assert!(!error.remedy().is_empty());
    assert!(!error.what().contains('\n'), "{error}");
    for part in parts {
        assert!(error.what().contains(part), "{:?} lacks {part:?}", error.what());
    }
}

fn assert_as_expected(fixture: &Fixture, backend: &Recorder) {
    let expected = fixture.expected();
    assert_eq!(backend.buffers.len(), expected.len());
    for (label, bytes) in expected {
        assert_eq!(backend.labelled(&label), bytes, "{label}");
    }
}

#[test]
fn every_tensor_arrives_whole_under_either_exporters_names_and_sharding() {
    let fixture = Fixture::new();
    let ways: [fn(&Fixture, &Path); 3] = [
        |fixture, folder| fixture.write_single(folder, published),
        |fixture, folder| fixture.write_single(folder, text_only),
        Fixture::write_sharded,
    ];
    for write in ways {
        let folder = folder();
        write(&fixture, folder.path());
        let mut backend = Recorder::unbounded();
        let loaded = load_folder(folder.path(), &mut backend).unwrap();
        assert_eq!(loaded.notices, Vec::<String>::new());
        assert_as_expected(&fixture, &backend);
        let weights = &loaded.weights;
        assert_eq!((weights.embed.rows(), weights.embed.cols()), (VOCAB as u32, HIDDEN as u32));
        assert_ne!(weights.embed, weights.head);
        let delta = delta_of(&loaded);
        assert_eq!((delta.conv.rows, delta.conv.cols), (CONV_COLS as u32, 4));
        assert_eq!((delta.ba.rows(), delta.qkvz.rows()), (2 * VALUE_HEADS as u32, (CONV_COLS + VALUE_COLS) as u32));
        assert_eq!((delta.a_log.rows, delta.a_log.cols), (1, VALUE_HEADS as u32));
        assert!(matches!(weights.layers[1].mixer, MixerWeights::Attention(_)));
        assert_eq!(weights.mtp.as_ref().unwrap().fc.cols(), 2 * HIDDEN as u32);
    }
}

#[test]
fn matrices_are_split_by_the_binding_limit_and_nothing_else_is() {
    let fixture = Fixture::new();
    let mut backend = Recorder::new(80);
    let loaded = load_fixture(&fixture, &mut backend).unwrap();
    let weights = &loaded.weights;
    assert_eq!(weights.embed.parts.len(), 2);
    assert_eq!(backend.weight_bytes(&weights.embed), fixture.tensors["embed_tokens.weight"].bytes);
    let delta = delta_of(&loaded);
    assert_eq!(backend.weight_bytes(&delta.qkvz), fixture.expected()["layers.0.qkvz"]);
    assert!(delta.qkvz.parts.iter().all(|part| part.bytes() <= 80));
    assert!(backend.labels().contains(&"layers.0.qkvz.1"));
    assert_eq!(backend.bytes(delta.conv), fixture.tensors["layers.0.linear_attn.conv1d.weight"].bytes);
    let rows = |weight: &Weight| weight.parts.iter().map(|part| part.rows).collect::<Vec<_>>();
    assert_eq!(rows(&weights.layers[1].mlp.gate), rows(&weights.layers[1].mlp.up));

    let error = load_fixture(&fixture, &mut Recorder::new(15)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failure);
    assert!(error.what().contains("one row of embed takes 16 bytes"), "{error}");
}

/// Rows ordered `[group][part][row]` in one tensor, from flat tensors: the opposite direction to the loader's.
fn interleaved(parts: &[(&[u8], usize)]) -> FixtureTensor {
    let row_bytes = HIDDEN * 2;
    let mut bytes = Vec::new();
    for group in 0..KEY_HEADS {
        for (part, rows) in parts {
            let start = group * rows * row_bytes;
            bytes.extend_from_slice(&part[start..start + rows * row_bytes]);
        }
    }
    FixtureTensor { dtype: Dtype::BF16, shape: vec![bytes.len() / row_bytes, HIDDEN], bytes }
}

#[test]
fn fused_inputs_of_qwen3_next_are_de_interleaved() {
    let flat = Fixture::new();
    let mut fused = flat.clone();
    fused.config["model_type"] = json!("qwen3_next");
    fused.config["num_experts"] = json!(0);
    let name = |part: &str| format!("layers.0.linear_attn.in_proj_{part}.weight");
    let [qkv, z, b, a] = ["qkv", "z", "b", "a"].map(|part| fused.remove(&name(part)).bytes);
    let (q, kv) = qkv.split_at(KEY_HEADS * KEY_DIM * HIDDEN * 2);
    let (k, v) = kv.split_at(q.len());
    let group_heads = VALUE_HEADS / KEY_HEADS;
    let value_rows = group_heads * VALUE_DIM;
    let qkvz = interleaved(&[(q, KEY_DIM), (k, KEY_DIM), (v, value_rows), (&z, value_rows)]);
    fused.tensors.insert(name("qkvz"), qkvz);
    fused.tensors.insert(name("ba"), interleaved(&[(&b, group_heads), (&a, group_heads)]));

    let mut backend = Recorder::unbounded();
    load_fixture(&fused, &mut backend).unwrap();
    assert_as_expected(&flat, &backend);
    let mut backend = Recorder::new(90);
    let loaded = load_fixture(&fused, &mut backend).unwrap();
    assert_eq!(backend.weight_bytes(&delta_of(&loaded).qkvz), flat.expected()["layers.0.qkvz"]);

    fused.remove(&name("ba"));
    assert_refused(&load_fixture(&fused, &mut Recorder::unbounded()).unwrap_err(), &["missing", "in_proj_ba.weight"]);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut fixture = Fixture::new();
    fixture.config["tie_word_embeddings"] = json!(true);
    let loaded = load_fixture(&fixture, &mut Recorder::unbounded()).unwrap();
    assert_eq!(loaded.weights.head, loaded.weights.embed);
    assert!(loaded.notices[0].contains("lm_head.weight is ignored"), "{:?}", loaded.notices);
    fixture.remove("lm_head.weight");
    assert_eq!(load_fixture(&fixture, &mut Recorder::unbounded()).unwrap().notices, Vec::<String>::new());
    fixture.config["tie_word_embeddings"] = json!(false);
    let error = load_fixture(&fixture, &mut Recorder::unbounded()).unwrap_err();
    assert_refused(&error, &["1 tensors are missing: lm_head.weight"]);
    assert!(error.remedy().contains("tie_word_embeddings"));
}

#[test]
fn the_draft_head_is_all_or_nothing() {
    let mut fixture = Fixture::new();
    fixture.config["mtp_num_hidden_layers"] = json!(0);
    let loaded = load_fixture(&fixture, &mut Recorder::unbounded()).unwrap();
    assert!(loaded.weights.mtp.is_none());
    assert!(loaded.notices[0].contains("15 mtp tensors are ignored"), "{:?}", loaded.notices);

    fixture.config["mtp_num_hidden_layers"] = json!(1);
    let mut partial = fixture.clone();
    partial.remove("mtp.layers.0.self_attn.k_norm.weight");
    let error = load_fixture(&partial, &mut Recorder::unbounded()).unwrap_err();
    assert_refused(&error, &["draft head lacks 1 of its 15 tensors", "mtp.layers.0.self_attn.k_norm.weight"]);

    fixture.remove_mtp();
    let loaded = load_fixture(&fixture, &mut Recorder::unbounded()).unwrap();
    assert!(loaded.weights.mtp.is_none());
    assert!(loaded.notices[0].contains("no mtp tensors"), "{:?}", loaded.notices);
}

#[test]
fn the_vision_tower_is_skipped_and_counted() {
    let mut fixture = Fixture::new();
    fixture.add("model.visual.patch_embed.proj.weight", &[4, 3, 2]);
    fixture.add("model.visual.merger.weight", &[5]);
    fixture.tensor("model.visual.merger.weight").dtype = Dtype::I16;
    let mut backend = Recorder::unbounded();
    let loaded = load_fixture(&fixture, &mut backend).unwrap();
    assert!(loaded.notices[0].contains("vision tower is skipped: 2 tensors, 58 bytes"), "{:?}", loaded.notices);
    assert_eq!(backend.buffers.len(), fixture.expected().len());
}

#[test]
fn f32_stays_f16_widens_and_mixed_rows_widen_together() {
    let mut fixture = Fixture::new();
    let delta = |name: &str| format!("layers.0.linear_attn.{name}");
    fixture.widen(&delta("A_log"));
    fixture.widen(&delta("in_proj_z.weight"));
    fixture.widen("layers.1.mlp.up_proj.weight");
    fixture.tensor(&delta("dt_bias")).dtype = Dtype::F16;
    fixture.tensor(&delta("dt_bias")).bytes = [0x00, 0x3C].repeat(VALUE_HEADS);
    let mut backend = Recorder::unbounded();
    let loaded = load_fixture(&fixture, &mut backend).unwrap();
    let mixer = delta_of(&loaded);
    assert_eq!((mixer.a_log.dtype, mixer.dt_bias.dtype, mixer.norm.dtype), (DType::F32, DType::F32, DType::Bf16));
    assert_eq!(backend.bytes(mixer.a_log), fixture.tensors[&delta("A_log")].bytes);
    assert_eq!(backend.bytes(mixer.dt_bias), 1f32.to_le_bytes().repeat(VALUE_HEADS));
    let mut qkvz = widened(&fixture.tensors[&delta("in_proj_qkv.weight")].bytes);
    qkvz.extend(&fixture.tensors[&delta("in_proj_z.weight")].bytes);
    assert_eq!(backend.weight_bytes(&mixer.qkvz), qkvz);
    let mlp = &loaded.weights.layers[1].mlp;
    assert_eq!((mlp.gate.parts[0].dtype, mlp.up.parts[0].dtype), (DType::F32, DType::F32));
    assert!(loaded.notices[0].contains("1 tensors are f16"), "{:?}", loaded.notices);
}

#[test]
fn what_the_model_cannot_use_is_refused_by_name_before_anything_is_allocated() {
    type Change = fn(&mut Fixture);
    let cases: [(Change, &[&str]); 10] = [
        (|f| drop(f.remove("norm.weight")), &["1 tensors are missing: norm.weight"]),
        (
            |f| f.tensors.retain(|name, _| !name.starts_with("layers.1.")),
            &["11 tensors are missing", "layers.1.", "and 6 more"],
        ),
        (
            |f| f.tensor("layers.1.mlp.up_proj.weight").shape.reverse(),
            &["layers.1.mlp.up_proj.weight in model.safetensors has shape [8, 12], expected [12, 8]"],
        ),
        (|f| f.config["vocab_size"] = json!(11), &["embed_tokens.weight", "[10, 8], expected [11, 8]"]),
        (|f| f.tensor("norm.weight").shape = vec![1, 8], &["norm.weight", "[1, 8], expected [8]"]),
        (|f| f.tensor("norm.weight").dtype = Dtype::I16, &["norm.weight", "is I16, expected BF16"]),
        (|f| f.add("layers.0.linear_attn.extra", &[2]), &["1 tensors have no place", "layers.0.linear_attn.extra"]),
        (
            |f| (0..9).for_each(|index| f.add(&format!("layers.2.lora.{index}"), &[2])),
            &["9 tensors have no place", "layers.2.lora.4 and 4 more"],
        ),
        (
            |f| f.add("layers.0.mlp.up_proj.weight_scale_inv", &[1, 1]),
            &["quantised", "layers.0.mlp.up_proj.weight_scale_inv"],
        ),
        (|f| f.add("layers.1.mlp.up_proj.qweight", &[1, 1]), &["quantised", "layers.1.mlp.up_proj.qweight"]),
    ];
    for (change, parts) in cases {
        let mut fixture = Fixture::new();
        change(&mut fixture);
        let mut backend = Recorder::unbounded();
        assert_refused(&load_fixture(&fixture, &mut backend).unwrap_err(), parts);
        assert!(backend.buffers.is_empty());
    }
}

fn refused_folder(spoil: impl FnOnce(&Path), parts: &[&str]) {
    let folder = folder();
    Fixture::new().write_sharded(folder.path());
    spoil(folder.path());
    match load_folder(folder.path(), &mut Recorder::unbounded()) {
        Ok(_) => panic!("loaded, expected {parts:?}"),
        Err(error) => assert_refused(&error, parts),
    }
}

fn place_in_index(folder: &Path, tensor: &str, shard: &str) {
    let path = folder.join(INDEX);
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    index["weight_map"][tensor] = json!(shard);
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn broken_folders_are_refused_naming_the_file() {
    let write = |name: &'static str, bytes: &'static [u8]| {
        move |folder: &Path| std::fs::write(folder.join(name), bytes).unwrap()
    };
    let remove = |name: &'static str| move |folder: &Path| std::fs::remove_file(folder.join(name)).unwrap();
    refused_folder(remove("config.json"), &["config.json is missing"]);
    refused_folder(write("config.json", b"{"), &["config.json: is not JSON"]);
    refused_folder(remove(SECOND), &[SECOND, "is missing"]);
    refused_folder(remove(INDEX), &["neither", INDEX, "model.safetensors is there"]);
    refused_folder(write(INDEX, b"[]"), &[INDEX, "is not an index"]);
    refused_folder(write(INDEX, br#"{"weight_map": {}}"#), &[INDEX, "lists no tensor"]);
    refused_folder(
        write(INDEX, br#"{"weight_map": {"a": "../secret.safetensors"}}"#),
        &["tensor a", "../secret.safetensors", "not a plain"],
    );
    refused_folder(write("model.safetensors", b""), &["model.safetensors lies beside"]);
    refused_folder(write(SECOND, b""), &[SECOND, "is truncated: 0 bytes"]);
    refused_folder(write(SECOND, b"version https://git-lfs.github.com/spec/v1\n"), &[SECOND, "Git LFS pointer"]);
    refused_folder(
        |folder| {
            std::fs::remove_file(folder.join(SECOND)).unwrap();
            std::fs::create_dir(folder.join(SECOND)).unwrap();
        },
        &[SECOND, "not a regular file"],
    );
    refused_folder(
        |folder| place_in_index(folder, "lm_head.weight", SECOND),
        &["tensor lm_head.weight is not in", SECOND],
    );
    refused_folder(|folder| place_in_index(folder, "absent.weight", FIRST), &["tensor absent.weight is not in", FIRST]);
    refused_folder(
        |folder| {
            std::fs::copy(folder.join(FIRST), folder.join(SECOND)).unwrap();
        },
        &["is there twice", FIRST, SECOND],
    );
    let error = Checkpoint::open(Path::new("/nonexistent")).err().unwrap();
    assert_refused(&error, &["/nonexistent is not a folder"]);
}

#[test]
fn one_tensor_under_two_prefixes_is_refused() {
    let mut fixture = Fixture::new();
    fixture.add("model.norm.weight", &[HIDDEN]);
    let error = load_fixture(&fixture, &mut Recorder::unbounded()).unwrap_err();
    assert_refused(&error, &["tensor norm.weight is there twice", "model.language_model.norm.weight"]);
}

/// A file with this header text and `data_bytes` bytes of data.
fn file_of(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

#[test]
fn broken_headers_are_refused_naming_the_tensor() {
    let tensor = |name: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let header = |tensors: &[String]| format!("{{{}}}", tensors.join(","));
    let two = |first_end, second_begin, second_end| {
        header(&[tensor("one", "[2]", 0, first_end), tensor("two", "[2]", second_begin, second_end)])
    };
    let huge = u64::MAX / 8;
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![1, 2, 3], &["truncated: 3 bytes"]),
        ((1u64 << 40).to_le_bytes().to_vec(), &["header of 1099511627776 bytes, the limit is"]),
        (100u64.to_le_bytes().to_vec(), &["truncated: its header takes 108 bytes, the file has 8"]),
        (file_of("{", 0), &["invalid header"]),
        (file_of(&two(8, 8, 16), 12), &["truncated", "tensor two ends at data byte 16, the file has 12"]),
        (file_of(&two(8, 8, 16), 20), &["4 bytes after its last tensor"]),
        (file_of(&two(8, 4, 12), 12), &["tensor two overlap tensor one"]),
        (file_of(&two(8, 12, 20), 20), &["4 unused bytes before tensor two"]),
        (file_of(&two(8, 8, 12), 12), &["tensor two 4 bytes", "takes 8 bytes"]),
        (file_of(&header(&[tensor("one", "[2]", 8, 0)]), 8), &["tensor one"]),
        (file_of(&header(&[tensor("one", &format!("[{huge},{huge}]"), 0, 8)]), 8), &["tensor one", "too many"]),
        (file_of(&header(&[tensor("one", "[-1]", 0, 0)]), 0), &["tensor one wrongly"]),
        (file_of(r#"{"one":{"dtype":"Q9","shape":[1],"data_offsets":[0,1]}}"#, 1), &["tensor one wrongly", "Q9"]),
        (file_of(&"[".repeat(10_000), 0), &["invalid header"]),
        // An end so large that adding the header to it would wrap around.
        (file_of(&header(&[tensor("one", "[4611686018427387900]", 0, u64::MAX - 15)]), 8), &["tensor one"]),
    ];
    for (bytes, parts) in cases {
        let folder = folder();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let error = Checkpoint::open(folder.path()).err().unwrap_or_else(|| panic!("opened, expected {parts:?}"));
        assert_refused(&error, &[&["model.safetensors: "], parts].concat());
    }
}

/// Any one byte changed, and any cut, gives an error or a checkpoint, never a panic.
#[test]
fn damage_anywhere_in_a_header_never_panics() {
    let fixture = Fixture::new();
    let whole = serialized(fixture.tensors.iter().map(|(name, tensor)| (published(name), tensor)));
    let header_bytes = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    let config = config_of(&fixture);
    let attempt = |bytes: Vec<u8>| {
        let files = [("model.safetensors", &*bytes.leak())];
        if let Ok(checkpoint) = Checkpoint::embedded(&files) {
            let _ = load(&mut Recorder::unbounded(), &config, &checkpoint, &mut |_, _| {});
        }
    };
    for place in (0..header_bytes).step_by(5) {
        let mut bytes = whole.clone();
        bytes[place] = bytes[place].wrapping_add(1 + (place % 7) as u8);
        attempt(bytes);
        attempt(whole[..place].to_vec());
    }
}

#[test]
fn large_tensors_are_streamed_in_bounded_pieces_with_progress() {
    let mut fixture = Fixture::new();
    let vocab = (20 << 20) / (HIDDEN * 2);
    fixture.config["vocab_size"] = json!(vocab);
    fixture.add("embed_tokens.weight", &[vocab, HIDDEN]);
    fixture.add("lm_head.weight", &[vocab, HIDDEN]);
    fixture.widen("lm_head.weight");
    let folder = folder();
    fixture.write_single(folder.path(), published);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut backend = Recorder::unbounded();
    let mut calls = Vec::new();
    let config = checkpoint.config().unwrap();
    load(&mut backend, &config, &checkpoint, &mut |done, total| calls.push((done, total))).unwrap();
    assert!(backend.labelled("embed") == fixture.tensors["embed_tokens.weight"].bytes);
    assert!(backend.labelled("head") == fixture.tensors["lm_head.weight"].bytes);
    assert!(backend.write_bytes_max <= 16 << 20);
    let total: usize = backend.buffers.iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(calls.first(), Some(&(0, total as u64)));
    assert_eq!(calls.last(), Some(&(total as u64, total as u64)));
    assert!(calls.is_sorted());
}

#[test]
fn random_weights_have_the_layout_of_loaded_ones_and_do_not_depend_on_the_split() {
    let fixture = Fixture::new();
    let config = config_of(&fixture);
    let mut loaded_on = Recorder::unbounded();
    let loaded = load_fixture(&fixture, &mut loaded_on).unwrap();
    let mut backend = Recorder::unbounded();
    let mut last = (0, 0);
    let weights = random(&mut backend, &config, 7, true, &mut |done, total| last = (done, total)).unwrap();
    assert_eq!(weights, loaded.weights, "handles, shapes and types");
    assert_eq!(last.0, last.1);
    assert_eq!(backend.labels(), loaded_on.labels());

    let mut split = Recorder::new(80);
    let parts = random(&mut split, &config, 7, false, &mut |_, _| {}).unwrap();
    assert!(parts.mtp.is_none());
    assert_eq!(split.weight_bytes(&parts.head), backend.weight_bytes(&weights.head));
    let mut other = Recorder::unbounded();
    random(&mut other, &config, 8, true, &mut |_, _| {}).unwrap();
    assert_ne!(other.labelled("embed"), backend.labelled("embed"));
}

fn inspect_fixture(fixture: &Fixture) -> Inspection {
    let folder = folder();
    fixture.write_single(folder.path(), published);
    inspect(&Checkpoint::open(folder.path()).unwrap()).unwrap()
}

#[test]
fn inspection_counts_parts_and_names_the_traps() {
    let mut fixture = Fixture::new();
    fixture.add("model.visual.merger.weight", &[5]);
    fixture.widen("layers.0.linear_attn.A_log");
    let found = inspect_fixture(&fixture);
    assert_eq!(found.problems, Vec::<String>::new());
    let part = |name: &str| found.parts.iter().find(|part| part.name == name).unwrap();
    assert_eq!((part("embedding").tensors, part("embedding").bytes), (1, 160));
    assert_eq!((part("delta layers").tensors, part("attention layers").tensors), (14, 11));
    assert_eq!((part("mtp").tensors, part("vision").tensors, part("vision").bytes), (15, 1, 10));
    let language: u64 = found.parts.iter().filter(|part| part.name != "vision").map(|part| part.parameters).sum();
    assert_eq!(found.parameters, language);
    assert_eq!((found.dtypes["F32"], found.dtypes["BF16"]), (1, 42));
    let noticed = |found: &Inspection, part: &str| found.notices.iter().any(|notice| notice.contains(part));
    for part in ["vision tower", "1 small DeltaNet tensors are f32", "tokenizer.json is missing", "no chat template"] {
        assert!(noticed(&found, part), "{part}: {:?}", found.notices);
    }
    assert!(serde_json::to_value(&found).unwrap()["loaded_bytes"].is_u64());

    fixture.remove_mtp();
    fixture.generation = Some(json!({"eos_token_id": [5, 3]}));
    let found = inspect_fixture(&fixture);
    assert!(noticed(&found, "no mtp tensors") && noticed(&found, "end tokens differ"), "{:?}", found.notices);
}

#[test]
fn inspection_describes_what_cannot_run() {
    let mut fixture = Fixture::new();
    fixture.generation = None;
    fixture.add("layers.1.mlp.up_proj.weight_scale_inv", &[1, 1]);
    let found = inspect_fixture(&fixture);
    assert!(found.problems[0].contains("weight_scale_inv"), "{:?}", found.problems);
    assert!(found.notices.iter().any(|notice| notice.contains("generation_config.json is missing")));
    assert_eq!(found.loaded_bytes, None);

    fixture.config["model_type"] = json!("qwen4_exp");
    let found = inspect_fixture(&fixture);
    assert!(found.config.is_none() && found.problems[0].contains("qwen4_exp"), "{:?}", found.problems);
    let count = |name: &str| found.parts.iter().find(|part| part.name == name).unwrap().tensors;
    assert_eq!((count("delta layers"), count("attention layers")), (14, 12));
}

#[test]
fn the_demo_checkpoint_loads_from_its_folder_and_compiled_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let mut backend = Recorder::unbounded();
    let config = checkpoint.config().unwrap();
    let loaded = load(&mut backend, &config, &checkpoint, &mut |_, _| {}).unwrap();
    assert!(loaded.weights.mtp.is_some());
    assert_eq!(loaded.notices, Vec::<String>::new());
    assert_eq!(deltic::weights::layout::parameters(&config, true), 11_775_792);
    let found = inspect(&checkpoint).unwrap();
    assert_eq!(found.parameters, 11_775_792);
    assert_eq!(found.problems, Vec::<String>::new());
    let generation = checkpoint.generation_config().unwrap();
    assert_eq!(config.end_ids(generation.as_ref()).unwrap(), [2739, 2741]);

    let names = ["config.json", "generation_config.json", INDEX, FIRST, SECOND];
    let files = names.map(|name| (name, &*std::fs::read(folder.join(name)).unwrap().leak()));
    let embedded = Checkpoint::embedded(&files).unwrap();
    let mut again = Recorder::unbounded();
    let loaded_again = load(&mut again, &embedded.config().unwrap(), &embedded, &mut |_, _| {}).unwrap();
    assert_eq!(loaded_again, loaded);
    assert!(again.buffers == backend.buffers);
}
