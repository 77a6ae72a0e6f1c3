//! Addresses of devices as text: where one sits on the PCI bus, who it is on the fabric.

use std::fmt;
use std::str::FromStr;

/// A function of a device on the PCI bus, as in `0000:c1:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Identity of an adapter on the fabric, as in `b859:9f03:00d4:1c2a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guid(pub u64);

/// Why text is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no PCI address: write domain:bus:device.function in hexadecimal, as in 0000:c1:00.0"
)]
pub struct AddressError {
    given: String,
}

impl FromStr for PciAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse_address(text).ok_or_else(|| AddressError {
            given: text.escape_default().to_string(),
        })
    }
}

fn parse_address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    // The driver's library writes domains with eight digits, the kernel with four.
    let domain = hexadecimal(domain, 4..=8)?;
    let bus = u8::try_from(hexadecimal(bus, 2..=2)?).ok()?;
    let device = u8::try_from(hexadecimal(device, 2..=2)?).ok()?;
    let function = u8::try_from(hexadecimal(function, 1..=1)?).ok()?;
    (device < 32 && function < 8).then_some(PciAddress {
        domain,
        bus,
        device,
        function,
    })
}

fn hexadecimal(digits: &str, length: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let legal = length.contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
    legal.then(|| u32::from_str_radix(digits, 16).ok())?
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Why text is no GUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no GUID: write four groups of four hexadecimal digits, as in b859:9f03:00d4:1c2a"
)]
pub struct GuidError {
    given: String,
}

impl FromStr for Guid {
    type Err = GuidError;

    fn from_str(text: &str) -> Result<Self, GuidError> {
        let groups: Option<Vec<u32>> = text
            .split(':')
            .map(|group| hexadecimal(group, 4..=4))
            .collect();
        match groups {
            Some(groups) if groups.len() == 4 => Ok(Self(
                groups
                    .into_iter()
                    .fold(0, |guid, group| (guid << 16) | u64::from(group)),
            )),
            Some(_) | None => Err(GuidError {
                given: text.escape_default().to_string(),
            }),
        }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = |shift: u32| (self.0 >> shift) & 0xffff;
        write!(
            f,
            "{:04x}:{:04x}:{:04x}:{:04x}",
            group(48),
            group(32),
            group(16),
            group(0)
        )
    }
}
