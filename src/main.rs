//! The `holdfast` binary; the commands are in [`holdfast::cli`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    holdfast::cli::main()
}
