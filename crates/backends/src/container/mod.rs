//! What back ends share whose sandboxes are containers that others start: a daemon, or a cluster. The first process of each container
//! is the agent.

pub(crate) mod agent_program;
pub(crate) mod env;
pub(crate) mod files;
pub(crate) mod ids;
pub(crate) mod level;
pub(crate) mod lifetime;
pub(crate) mod sandbox;
pub(crate) mod tar;
