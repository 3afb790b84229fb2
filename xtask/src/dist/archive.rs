//! Archives with fixed times, owners and order: zip for Python and MCP bundles, tar with gzip for the rest.

use std::io::Write as _;

use anyhow::{Context, Result};
use flate2::{Compression, Crc, GzBuilder, write::DeflateEncoder};

/// A file of an archive.
pub(super) struct Member {
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) executable: bool,
}

impl Member {
    pub(super) fn text(path: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            bytes: text.into(),
            executable: false,
        }
    }

    pub(super) fn program(path: impl Into<String>, bytes: &[u8]) -> Self {
        Self {
            path: path.into(),
            bytes: bytes.to_vec(),
            executable: true,
        }
    }

    const fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// The first day that zip knows: 1980-01-01.
const ZIP_EPOCH_DATE: u16 = 0x21;
/// The same in seconds since 1970, for tar.
const ZIP_EPOCH_SECONDS: u64 = 315_532_800;

pub(super) fn zip(members: &[Member]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for member in members {
        let mut crc = Crc::new();
        crc.update(&member.bytes);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&member.bytes)?;
        let packed = encoder.finish()?;
        let start = u32::try_from(out.len()).context("the archive is too large")?;
        let mut common = Vec::new();
        // Version 2.0, names in UTF-8, deflate.
        for number in [20_u16, 0x0800, 8, 0, ZIP_EPOCH_DATE] {
            common.extend(number.to_le_bytes());
        }
        common.extend(crc.sum().to_le_bytes());
        common.extend(u32::try_from(packed.len())?.to_le_bytes());
        common.extend(u32::try_from(member.bytes.len())?.to_le_bytes());
        common.extend(u16::try_from(member.path.len())?.to_le_bytes());
        common.extend(0_u16.to_le_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(member.path.as_bytes());
        out.extend(packed);
        directory.extend(b"PK\x01\x02");
        // Made on Unix, so the rights below mean something.
        directory.extend([20, 3]);
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend(((0o100_000 | member.mode()) << 16).to_le_bytes());
        directory.extend(start.to_le_bytes());
        directory.extend(member.path.as_bytes());
    }
    let start = u32::try_from(out.len())?;
    let count = u16::try_from(members.len())?;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(u32::try_from(directory.len())?.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0; 2]);
    Ok(out)
}

pub(super) fn tar_gz(members: &[Member]) -> Result<Vec<u8>> {
    let mut tar = Vec::new();
    for member in members {
        tar.extend(header(member)?);
        tar.extend(&member.bytes);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(&tar)?;
    Ok(encoder.finish()?)
}

/// A header as POSIX.1-1988 (ustar) has it.
fn header(member: &Member) -> Result<[u8; 512]> {
    let mut header = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    anyhow::ensure!(member.path.len() < 100, "{} is too long for tar", member.path);
    put(0, member.path.as_bytes());
    put(100, format!("{:07o}\0", member.mode()).as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", member.bytes.len()).as_bytes());
    put(136, format!("{ZIP_EPOCH_SECONDS:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}
