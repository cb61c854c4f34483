//! Compilers, the built library, and places to put things.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The shared library that was built together with this test: next to it, without a hash in its name.
pub fn shared_library() -> PathBuf {
    built("libp2pkv.so")
}

pub fn static_library() -> PathBuf {
    built("libp2pkv.a")
}

fn built(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join(name), deps.parent().unwrap().join(name)];
    let found = candidates.iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("none of {candidates:?} was built")).clone()
}

/// An empty folder of its own for each test.
pub fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi").join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// One way to compile: a compiler and a language version.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    pub command: &'static str,
    pub standard: &'static str,
}

impl Compiler {
    pub const C11: Compiler = Compiler { command: "gcc", standard: "c11" };

    pub fn is_cpp(self) -> bool {
        self.command.ends_with("++")
    }

    /// Ready for sources and outputs; every warning is an error.
    pub fn start(self) -> Command {
        let mut command = Command::new(self.command);
        command.arg(format!("-std={}", self.standard));
        command.args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L"]);
        command.arg("-I").arg(root().join("include"));
        command.args(["-x", if self.is_cpp() { "c++" } else { "c" }]);
        command
    }
}

/// All that are installed: gcc must be, clang may be.
pub fn compilers() -> Vec<Compiler> {
    let all = [
        ("gcc", "c99"),
        ("gcc", "c11"),
        ("gcc", "c2x"),
        ("g++", "c++17"),
        ("g++", "c++20"),
        ("clang", "c99"),
        ("clang", "c11"),
        ("clang", "c2x"),
        ("clang++", "c++17"),
    ];
    let all = all.map(|(command, standard)| Compiler { command, standard });
    let is_there = |compiler: &Compiler| {
        Command::new(compiler.command).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let there: Vec<Compiler> = all.into_iter().filter(is_there).collect();
    assert!(there.iter().any(|compiler| compiler.command == "gcc"), "gcc is needed for these tests");
    assert!(there.iter().any(|compiler| compiler.command == "g++"), "g++ is needed for these tests");
    there
}

/// Runs to a good end; gives what was written to stdout.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A program that runs no longer than a minute.
pub fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program);
    command
}

/// What a library that was built with a sanitizer needs besides (scripts/sanitize.sh).
fn more_to_link() -> Vec<String> {
    let given = env::var("P2PKV_TEST_LINK").unwrap_or_default();
    given.split_whitespace().map(str::to_owned).collect()
}

/// Links `source` of tests/c with the shared library, found again by its soname.
pub fn link_shared(source: &str, folder: &Path) -> PathBuf {
    link_with(source, folder, &[])
}

/// As [`link_shared`], with more objects or libraries.
pub fn link_with(source: &str, folder: &Path, more: &[&Path]) -> PathBuf {
    let library = shared_library();
    for name in ["libp2pkv.so", "libp2pkv.so.0"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
    }
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let mut link = start_link(source, &folder.join("shared"));
    link.args(more).arg("-L").arg(folder).arg(rpath).args(["-lp2pkv", "-lpthread", "-lm"]);
    succeed(link.args(more_to_link()));
    folder.join("shared")
}

/// For a program that loads the library itself.
pub fn link_without(source: &str, folder: &Path) -> PathBuf {
    let program = folder.join("alone");
    succeed(start_link(source, &program).args(["-lpthread", "-ldl"]));
    program
}

pub fn link_static(source: &str, folder: &Path) -> PathBuf {
    let program = folder.join("static");
    let mut link = start_link(source, &program);
    link.arg(static_library()).args(more_to_link()).args(["-lstdc++", "-lm", "-lpthread", "-ldl"]);
    succeed(&mut link);
    program
}

fn start_link(source: &str, program: &Path) -> Command {
    let mut link = Compiler::C11.start();
    link.arg(root().join("tests/c").join(source)).args(["-x", "none", "-o"]).arg(program);
    link
}
