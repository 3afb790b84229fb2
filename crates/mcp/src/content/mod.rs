//! Content blocks of executions: text that a model reads, pictures it sees, links, and the server's last block that
//! code cannot forge.

pub(crate) mod execution;
pub(crate) mod pictures;
pub(crate) mod text;

pub use execution::execution_object;
