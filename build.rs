//! Names the shared library, and writes the C header from `src/capi/`.
//!
//! The header goes to `OUT_DIR`; a test compares it with the committed `include/p2pkv.h`. With `P2PKV_WRITE_HEADER=1`
//! in the environment the committed one is written too.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// In the order in which their functions appear in the header.
const SOURCES: [&str; 16] = [
    "version",
    "status",
    "enums",
    "last_error",
    "log",
    "strings",
    "pointers",
    "handle",
    "region",
    "config",
    "tier",
    "request",
    "transfer",
    "directory",
    "serve",
    "observe",
];

fn main() -> Result<(), Box<dyn Error>> {
    // .0: no promise of binary compatibility before 1.0. nodelete: TLS destructors and threads outlive a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libp2pkv.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=src/capi");
    println!("cargo:rerun-if-env-changed=P2PKV_WRITE_HEADER");

    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let header = header(&root)?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("p2pkv.h"), &header)?;
    if env::var_os("P2PKV_WRITE_HEADER").is_some_and(|value| value == "1") {
        fs::create_dir_all(root.join("include"))?;
        fs::write(root.join("include/p2pkv.h"), &header)?;
    }
    Ok(())
}

fn header(root: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/capi/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate()?.write(&mut header);
    Ok(header)
}
