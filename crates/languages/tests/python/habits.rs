//! habits
