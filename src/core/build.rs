//! Generates the messages of the wire schema and of the record (no services, no protoc).

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SCHEMA: &str = "../upstream/holdfast.proto";
    const RECORD: &str = "record.proto";
    println!("cargo:rerun-if-changed={SCHEMA}");
    println!("cargo:rerun-if-changed={RECORD}");
    for (file, dir) in [(SCHEMA, "../upstream"), (RECORD, ".")] {
        let files = protox::compile([file], [dir])?;
        prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    }
    Ok(())
}
