//! Values from the command line, a file or standard input.

use std::io::Read;

use super::Failure;

/// More than any server takes; the server says what its limit is.
const LARGEST: u64 = 64 << 20;

/// `@FILE` is a file's content, `-` or nothing standard input, anything else the value itself.
pub(crate) fn value(argument: Option<&str>) -> Result<Vec<u8>, Failure> {
    match argument {
        None | Some("-") => read(std::io::stdin().lock(), "standard input"),
        Some(text) => match text.strip_prefix('@') {
            Some(path) => {
                let file = std::fs::File::open(path)
                    .map_err(|error| Failure::Local(format!("{path}: {error}")))?;
                read(file, path)
            }
            None => Ok(text.as_bytes().to_vec()),
        },
    }
}

fn read(source: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = source.take(LARGEST + 1).read_to_end(&mut bytes);
    match read {
        Err(error) => Err(Failure::Local(format!("{name}: {error}"))),
        Ok(length) if length as u64 > LARGEST => {
            Err(Failure::Local(format!("{name}: larger than {} MiB", LARGEST >> 20)))
        }
        Ok(_) => Ok(bytes),
    }
}
