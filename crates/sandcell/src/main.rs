//! The `sandcell` program.
fn main() {}
