//! `holdfast gateway`, `holdfast placement`, `holdfast owner`: configuration to a running part.

use std::path::Path;

pub(super) fn gateway(_config: Option<&Path>) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}

pub(super) fn placement(_config: Option<&Path>) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}

pub(super) fn owner(_config: Option<&Path>) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}
