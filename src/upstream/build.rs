//! Generates the gRPC services of the schema; their messages are `holdfast_core::proto` (no protoc).

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SCHEMA: &str = "src/upstream/holdfast.proto";
    println!("cargo:rerun-if-changed={SCHEMA}");
    let files = protox::compile([SCHEMA], ["src/upstream"])?;
    tonic_prost_build::configure().extern_path(".holdfast.v1", "::holdfast_core::proto").compile_fds(files)?;
    Ok(())
}
