//! The machine code of Python's images is that of its source.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::path::Path;
use std::process::Command;

/// Returns the hexadecimal digits that `images.py` has.
fn digits_of_driver(folder: &Path) -> String {
    let driver = std::fs::read_to_string(folder.join("images.py")).unwrap();
    let code = driver.split("MACHINE = bytes.fromhex(").nth(1).unwrap();
    let code = code.split(')').next().unwrap();
    code.chars().filter(char::is_ascii_hexdigit).collect()
}

#[test]
fn the_machine_code_of_images_is_assembled_from_its_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/python/driver");
    let made = tempfile::tempdir().unwrap();
    let (object, code) = (made.path().join("code.o"), made.path().join("code.bin"));
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    run(Command::new("as").arg(folder.join("images.s")).arg("-o").arg(&object));
    run(Command::new("objcopy")
        .args(["-O", "binary", "-j", ".text"])
        .args([&object, &code]));
    let assembled: String = std::fs::read(code)
        .unwrap()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(digits_of_driver(&folder), assembled);
}
