//! Packs the files of Python's driver (deflate), which takes a third of their bytes.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build script fails by panicking and talks to cargo on stdout"
)]

use std::fs;
use std::path::PathBuf;

const FOLDER: &str = "src/python/driver";

fn main() {
    println!("cargo::rerun-if-changed={FOLDER}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets its variables"));
    for entry in fs::read_dir(FOLDER).expect("the driver is here") {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let source = fs::read(&path).expect("a file of the driver can be read");
            let packed = miniz_oxide::deflate::compress_to_vec(&source, 10);
            let name = path.file_stem().expect("it has a name");
            fs::write(out.join(name), packed).expect("the output folder is writable");
        }
    }
}
