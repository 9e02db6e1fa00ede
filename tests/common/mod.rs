//! What the tests across the backend seam share: tensors on the host, step inputs, the backends under test, and what
//! counts as equal. Knows no op's formula.

pub mod cases;
pub mod matrix;
pub mod rig;
pub mod step;
pub mod target;
pub mod tolerance;
