//! Prints the text of our kernels: what `cargo xtask gpu` has a GPU's driver translate and run.

#![expect(clippy::print_stdout, reason = "it prints")]

#[path = "../src/cuda/ptx.rs"]
mod ptx;

fn main() {
    print!("{}", ptx::module());
}
