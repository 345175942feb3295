//! reorder
