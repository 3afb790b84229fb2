//! Placeholder head, replaced below.
