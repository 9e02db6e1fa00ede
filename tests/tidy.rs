//! House rules that a reader should not have to check by hand: import edges, where `unsafe` and the environment may
//! appear, sizes, five-way naming, and what must not be left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What a module may import of ours, beside itself. The longest matching prefix of a file's module path counts.
const IMPORTS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("backend", &["base"]),
    ("backend::cpu", &["backend", "base"]),
    ("weights", &["base", "backend"]),
    ("model", &["base", "backend", "weights"]),
    ("engine", &["base"]),
    ("text", &["base"]),
    ("runner", &["engine", "model", "backend", "base"]),
    ("cli", &["base", "backend", "weights", "model", "engine", "text", "runner"]),
];

/// The only files that may hold `unsafe`, each with a SAFETY line per use.
const UNSAFE_FILES: &[&str] = &["src/backend/cpu/simd.rs", "src/weights/map.rs"];

/// Lines of a file, its tests not counted, before it must be split.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function before it must be split.
const FUNCTION_LINES_MAX: usize = 70;
/// One match over the closed enum, an arm per op: longer than the bounds, and of one idea.
const LONG: &[(&str, &str)] = &[
    ("src/backend/op.rs", "operands"),
    ("src/backend/check.rs", "check"),
    ("src/backend/op.rs", "file"),
    // The one file that may hold unsafe, with one trait four times.
    ("src/backend/cpu/simd.rs", "file"),
    // A model's ops in their order, for measurements.
    ("src/backend/cpu/speed.rs", "record"),
    // A table of data.
    ("tests/text/streams.rs", "transcripts"),
];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines before the unit tests at the bottom.
    fn code(&self) -> impl Iterator<Item = &str> {
        self.text.lines().take_while(|line| *line != "#[cfg(test)]")
    }

    /// `backend::cpu::matmul` for `src/backend/cpu/matmul.rs`.
    fn module(&self) -> String {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
        inner.replace('/', "::")
    }
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let module = source.module();
        if module == "lib" || module == "main" {
            continue;
        }
        let rule = IMPORTS.iter().filter(|(name, _)| inside(&module, name)).max_by_key(|(name, _)| name.len());
        let Some((own, allowed)) = rule else {
            wrong.push(format!("{} belongs to no module of the import rules", source.path));
            continue;
        };
        for imported in crate_paths(&source.text) {
            let concrete = inside(&imported, "backend::cpu") && !inside(&module, "backend::cpu");
            let fine = match concrete {
                true => *own == "cli",
                false => inside(&imported, own) || allowed.iter().any(|name| inside(&imported, name)),
            };
            if !fine {
                wrong.push(format!("{} imports crate::{imported}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "import rules (STYLE: base < backend < model < runner < cli):\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_and_the_environment_stay_in_their_files() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        for (number, line) in (1..).zip(source.text.lines()) {
            let at = format!("{}:{number}", source.path);
            let code = line.split("//").next().unwrap_or_default();
            let has_unsafe = words(code).any(|word| word == "unsafe");
            if has_unsafe && !UNSAFE_FILES.contains(&source.path.as_str()) {
                wrong.push(format!("{at}: unsafe"));
            }
            if code.contains("env::var") && !source.path.starts_with("src/cli/") {
                wrong.push(format!("{at}: reads the environment"));
            }
            if source.path.starts_with("src/model") && code.contains("cfg(feature") {
                wrong.push(format!("{at}: the model knows no features"));
            }
        }
        let blocks = source.text.matches("unsafe {").count() + source.text.matches("unsafe impl").count();
        let reasons = source.text.matches("SAFETY").count();
        if blocks > 0 && reasons == 0 {
            wrong.push(format!("{}: unsafe without a SAFETY line", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_say_what_they_are_for_and_stay_readable() {
    let mut wrong = Vec::new();
    for source in sources("src").into_iter().chain(sources("tests")) {
        if !source.text.starts_with("//!") {
            wrong.push(format!("{}: does not begin with a //! paragraph", source.path));
        }
        let lines = source.code().count();
        if lines > FILE_LINES_MAX && source.path.starts_with("src") && !is_long(&source.path, "file") {
            wrong.push(format!("{}: {lines} lines, look for the second idea", source.path));
        }
        for (name, lines) in functions(&source.text) {
            if lines > FUNCTION_LINES_MAX && !is_long(&source.path, &name) {
                wrong.push(format!("{}: fn {name} has {lines} lines", source.path));
            }
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            // A string literal cannot be broken without changing it.
            if line.chars().count() > 120 && !line.contains('"') {
                wrong.push(format!("{}:{number}: longer than 120", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_unfinished_or_private_is_left_behind() {
    let mut wrong = Vec::new();
    let left_behind = ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"];
    let machine_paths = ["/root/", "/home/", "/work/"];
    for source in sources("src").into_iter().chain(sources("tests")) {
        if source.path == "tests/tidy.rs" {
            continue;
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            for word in left_behind.iter().chain(&machine_paths) {
                if line.contains(word) {
                    wrong.push(format!("{}:{number}: {word}", source.path));
                }
            }
            if line.trim_start() == "#[ignore]" {
                wrong.push(format!("{}:{number}: ignored without a reason", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_op_has_its_kernel_test_and_table_row_under_one_name() {
    let mut wrong = Vec::new();
    let names = op_names();
    assert!(names.len() >= 24, "the op names were not found in op.rs: {names:?}");
    let cpu: String = sources("src/backend/cpu").into_iter().map(|source| source.text).collect();
    let table = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for name in &names {
        if !cpu.contains(&format!("fn {name}(")) && !cpu.contains(&format!("fn {name}<")) {
            wrong.push(format!("{name}: no function of that name in src/backend/cpu"));
        }
        if !root().join(format!("tests/ops/{name}.rs")).exists() {
            wrong.push(format!("{name}: no tests/ops/{name}.rs"));
        }
        if !table.contains(&format!("| `{name}` |")) {
            wrong.push(format!("{name}: no row in the op table of ARCHITECTURE.md"));
        }
        for (folder, ending) in [("kernels", "cu"), ("shaders", "wgsl")] {
            let folder = root().join(folder);
            if folder.exists() && !folder.join(format!("{name}.{ending}")).exists() {
                wrong.push(format!("{name}: no {}/{name}.{ending}", folder.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rules_see_what_they_look_for() {
    assert_eq!(
        crate_paths("use crate::model::{Bucket, Model};\nlet x = crate::text::a();"),
        ["model".to_owned(), "text::a".to_owned()]
    );
    assert!(inside("backend::cpu::delta", "backend::cpu") && !inside("backends", "backend"));
    let text = "fn short() {}\n    pub fn long(\n        a: u8,\n    ) {\n        b;\n    }\n";
    assert_eq!(functions(text), [("short".to_owned(), 1), ("long".to_owned(), 5)]);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    assert!(!paths.is_empty(), "no sources in {folder}");
    let read = |path: PathBuf| Source {
        text: fs::read_to_string(&path).expect("a readable source"),
        path: path.strip_prefix(root()).expect("below the root").display().to_string(),
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            paths.push(path);
        }
    }
}

fn inside(module: &str, name: &str) -> bool {
    module == name || module.starts_with(name) && module[name.len()..].starts_with("::")
}

fn is_long(path: &str, function: &str) -> bool {
    LONG.contains(&(path, function))
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// Every path after `crate::`, up to what is not a path.
fn crate_paths(text: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let whole_word = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &text[at + "crate::".len()..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
        if whole_word {
            found.insert(rest[..end].trim_end_matches(':').to_owned());
        }
    }
    found.into_iter().collect()
}

/// Names and lengths of functions, by the indentation that rustfmt gives their closing brace.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let indent = &line[..line.len() - trimmed.len()];
        let mut parts = trimmed.split_whitespace().skip_while(|word| {
            matches!(*word, "pub" | "const" | "unsafe" | "async" | "extern") || word.starts_with("pub(")
        });
        if parts.next() != Some("fn") {
            continue;
        }
        let name = words(parts.next().unwrap_or_default()).next().unwrap_or_default().to_owned();
        if trimmed.ends_with('}') || trimmed.ends_with(';') {
            found.push((name, 1));
            continue;
        }
        let closing = format!("{indent}}}");
        let length = lines[start..].iter().position(|line| *line == closing || *line == format!("{indent}) -> Self;"));
        found.push((name, length.map_or(1, |length| length + 1)));
    }
    found
}

/// The strings that `Op::name` returns.
fn op_names() -> Vec<String> {
    let text = fs::read_to_string(root().join("src/backend/op.rs")).expect("op.rs");
    let start = text.find("pub fn name(").expect("Op::name");
    let body = &text[start..start + text[start..].find("\n    }\n").expect("its end")];
    body.lines().filter_map(|line| line.split("=> \"").nth(1)?.split('"').next().map(str::to_owned)).collect()
}
