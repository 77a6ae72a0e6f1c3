//! RDMA devices: which there are, their ports, and the address (GID) that a connection uses. Choosing a GID is a pure
//! function of the table.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::{Error, VerbsLibrary};

/// What a port's cable speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are found by LID.
    InfiniBand,
    /// Ethernet, RoCE: peers are found by GID.
    Ethernet,
}

/// What a GID may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE in Ethernet frames, which no router passes on.
    RoceV1,
    /// RoCE in UDP.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// What it may be used for.
    pub kind: GidKind,
    /// The GID itself: an IPv6 address, or an IPv4 address mapped into one.
    pub bytes: [u8; 16],
}

impl Gid {
    /// The address that the GID stands for.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.bytes).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.index, self.kind, self.address())
    }
}

/// Which GID to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidChoice {
    /// RoCE v2 with an IPv4 address, else with a routed IPv6 address, else with a link-local one; on InfiniBand
    /// the first.
    #[default]
    Automatic,
    /// The one of an address.
    Address(IpAddr),
    /// The one at a place in the table.
    Index(u8),
}

/// The GID that the choice gives, if the table has one.
pub fn choose(table: &[Gid], link: LinkLayer, choice: GidChoice) -> Option<Gid> {
    let usable = table.iter().filter(|gid| match link {
        LinkLayer::InfiniBand => gid.kind == GidKind::InfiniBand,
        LinkLayer::Ethernet => gid.kind == GidKind::RoceV2,
    });
    match choice {
        // Whoever names a place in the table knows what is there.
        GidChoice::Index(index) => table.iter().find(|gid| gid.index == index).copied(),
        GidChoice::Address(address) => usable
            .copied()
            .find(|gid| gid.address() == address.to_canonical()),
        GidChoice::Automatic => usable.copied().min_by_key(|gid| {
            let rank = match gid.address() {
                IpAddr::V4(_) => 0,
                IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
                IpAddr::V6(_) => 2,
            };
            (rank, gid.index)
        }),
    }
}

/// A port, as it was when it was asked.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub active: bool,
    /// What its cable speaks.
    pub link: LinkLayer,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Whether packets need GIDs: on Ethernet always, on InfiniBand where LIDs do not distinguish its ports, as with
    /// virtual functions.
    pub by_gid: bool,
    /// Largest packet, in the code of the verbs: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Its GID table.
    pub gids: Vec<Gid>,
}

impl Port {
    /// The GID for connections from this port.
    pub fn gid(&self, device: &str, choice: GidChoice) -> Result<Gid, Error> {
        choose(&self.gids, self.link, choice).ok_or_else(|| Error::Gid {
            device: device.to_owned(),
            port: self.number,
            choice,
            there: self.gids.clone(),
        })
    }
}

/// The devices of this machine.
pub fn devices(library: &Arc<VerbsLibrary>) -> Result<Vec<Arc<DeviceContext>>, Error> {
    let list = List::new(library)?;
    if list.count == 0 {
        return Err(Error::NoDevice);
    }
    (0..list.count).map(|index| list.open(index)).collect()
}

/// A device with a port that carries traffic and the GID to use on it: of the devices that have such a port the
/// first, or the one of this name; of its ports the first, or the one of this number.
pub fn find(
    library: &Arc<VerbsLibrary>,
    name: Option<&str>,
    number: Option<u8>,
    choice: GidChoice,
) -> Result<(Arc<DeviceContext>, Port, Gid), Error> {
    let list = List::new(library)?;
    if list.count == 0 {
        return Err(Error::NoDevice);
    }
    let known: Vec<String> = (0..list.count).map(|index| list.name(index)).collect();
    let mut first_error = None;
    for (index, own) in known.iter().enumerate() {
        if name.is_some_and(|name| name != own) {
            continue;
        }
        // A container is often given the files of some devices only, and sees the names of all.
        let device = match list.open(index) {
            Ok(device) => device,
            Err(error) => {
                first_error.get_or_insert(error);
                continue;
            }
        };
        let wanted = |port: &Port| port.active && number.is_none_or(|number| number == port.number);
        let ports = device.ports().unwrap_or_else(|error| {
            first_error.get_or_insert(error);
            Vec::new()
        });
        for port in ports.into_iter().filter(wanted) {
            match port.gid(&device.name, choice) {
                Ok(gid) => return Ok((device, port, gid)),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    Err(first_error.unwrap_or_else(|| Error::Inactive {
        name: name.map(str::to_owned),
        known,
    }))
}

/// The library's list, which opened devices outlive.
struct List<'a> {
    library: &'a Arc<VerbsLibrary>,
    first: NonNull<*mut abi::IbvDevice>,
    count: usize,
}

impl<'a> List<'a> {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn new(library: &'a Arc<VerbsLibrary>) -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: the function fills in the number of devices and returns an array of as many.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        match NonNull::new(first) {
            Some(first) => Ok(Self {
                library,
                first,
                count: usize::try_from(count).unwrap_or(0),
            }),
            // Without the kernel's modules the library says this instead of giving an empty list.
            None => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::NotFound => Err(Error::NoDevice),
                error if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => {
                    Err(Error::NoDevice)
                }
                source => Err(Error::call("list the devices", source)),
            },
        }
    }

    #[expect(unsafe_code, reason = "an array of the library's")]
    fn device(&self, index: usize) -> *mut abi::IbvDevice {
        assert!(index < self.count, "there are {} devices", self.count);
        // SAFETY: `index` is below the length of the list, which lives as long as `self`.
        unsafe { *self.first.as_ptr().add(index) }
    }

    #[expect(unsafe_code, reason = "a call into the library")]
    fn name(&self, index: usize) -> String {
        // SAFETY: the device is one of the list; its name is a C string that lives as long as the device.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(self.device(index))) };
        name.to_string_lossy().into_owned()
    }

    #[expect(unsafe_code, reason = "a call into the library")]
    fn open(&self, index: usize) -> Result<Arc<DeviceContext>, Error> {
        let (device, name) = (self.device(index), self.name(index));
        // SAFETY: the device is one of the list.
        let raw = unsafe { (self.library.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::Open {
            device: name.clone(),
            source: io::Error::last_os_error(),
        })?;
        Ok(Arc::new(DeviceContext {
            library: Arc::clone(self.library),
            raw,
            name,
        }))
    }
}

impl Drop for List<'_> {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once; opened devices do not need it.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

/// An open device. What is made from it keeps it open.
#[derive(Debug)]
pub struct DeviceContext {
    pub(super) library: Arc<VerbsLibrary>,
    pub(super) raw: NonNull<abi::IbvContext>,
    name: String,
}

// SAFETY: the library may be called from any thread, and locks what it has to.
#[expect(unsafe_code, reason = "devices may move between threads")]
unsafe impl Send for DeviceContext {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "devices may be shared between threads")]
unsafe impl Sync for DeviceContext {}

impl DeviceContext {
    /// The kernel's name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ports, by number.
    #[expect(unsafe_code, reason = "calls into the library")]
    pub fn ports(&self) -> Result<Vec<Port>, Error> {
        // SAFETY: a structure of numbers, of which zero is a valid value.
        let mut attributes: abi::DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the library fills in the structure.
        let status = unsafe { (self.library.query_device)(self.raw.as_ptr(), &raw mut attributes) };
        Error::check("ask for a device's limits", status)?;
        (1..=attributes.phys_port_cnt)
            .map(|number| self.port(number))
            .collect()
    }

    /// One of its ports.
    #[expect(unsafe_code, reason = "calls into the library")]
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        // SAFETY: a structure of numbers, of which zero is a valid value.
        let mut attributes: abi::PortAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open; the library fills in at most the structure.
        let status =
            unsafe { (self.library.query_port)(self.raw.as_ptr(), number, &raw mut attributes) };
        Error::check("ask for a port's state", status)?;
        let link = match attributes.link_layer {
            abi::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            // Old kernels say "unspecified" for what is InfiniBand.
            _ => LinkLayer::InfiniBand,
        };
        let length = u8::try_from(attributes.gid_tbl_len).unwrap_or(u8::MAX);
        Ok(Port {
            number,
            active: attributes.state == abi::PORT_ACTIVE,
            link,
            lid: attributes.lid,
            by_gid: link == LinkLayer::Ethernet
                || attributes.flags & abi::PORT_NEEDS_GLOBAL_HEADER != 0,
            mtu: attributes.active_mtu.clamp(1, 5) as u8,
            gids: (0..length)
                .filter_map(|index| self.gid(number, index))
                .collect(),
        })
    }

    /// An entry of a port's GID table, unless it is empty.
    #[expect(unsafe_code, reason = "a call into the library")]
    fn gid(&self, port: u8, index: u8) -> Option<Gid> {
        // SAFETY: a structure of numbers, of which zero is a valid value.
        let mut entry: abi::GidEntry = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open; the library fills in the structure, whose size it knows.
        let status = unsafe {
            (self.library.query_gid)(
                self.raw.as_ptr(),
                port.into(),
                index.into(),
                &raw mut entry,
                0,
                size_of::<abi::GidEntry>(),
            )
        };
        let kind = match entry.gid_type {
            abi::GID_TYPE_INFINIBAND => GidKind::InfiniBand,
            abi::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            abi::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => return None,
        };
        (status == 0 && entry.gid != [0; 16]).then_some(Gid {
            index,
            kind,
            bytes: entry.gid,
        })
    }
}

impl Drop for DeviceContext {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn drop(&mut self) {
        // SAFETY: the device is open and closed once; whatever was made from it holds an `Arc` and is gone.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, kind: GidKind, address: &str) -> Gid {
        let address: IpAddr = address.parse().unwrap();
        let bytes = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Gid { index, kind, bytes }
    }

    fn table() -> Vec<Gid> {
        vec![
            gid(0, GidKind::RoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV1, "192.0.2.7"),
            gid(4, GidKind::RoceV2, "2001:db8::7"),
            gid(5, GidKind::RoceV2, "192.0.2.7"),
            gid(6, GidKind::RoceV2, "192.0.2.8"),
        ]
    }

    #[test]
    fn a_routed_address_of_roce_v2_is_preferred_and_v1_is_never_taken_unasked() {
        let chosen = |table: &[Gid]| {
            choose(table, LinkLayer::Ethernet, GidChoice::Automatic).map(|gid| gid.index)
        };
        let mut table = table();
        for expected in [5, 6, 4, 1] {
            assert_eq!(chosen(&table), Some(expected));
            table.retain(|gid| gid.index != expected);
        }
        assert_eq!(chosen(&table), None);
    }

    #[test]
    fn an_address_and_an_index_are_found_where_they_are() {
        let table = table();
        let choose = |choice| choose(&table, LinkLayer::Ethernet, choice).map(|gid| gid.index);
        let address = |text: &str| GidChoice::Address(text.parse().unwrap());
        assert_eq!(choose(address("192.0.2.8")), Some(6));
        assert_eq!(choose(address("::ffff:192.0.2.7")), Some(5));
        assert_eq!(choose(address("192.0.2.9")), None);
        assert_eq!(choose(GidChoice::Index(2)), Some(2));
        assert_eq!(choose(GidChoice::Index(3)), None);
    }

    #[test]
    fn infiniband_takes_its_own_kind() {
        let table = [gid(0, GidKind::InfiniBand, "fe80::2")];
        let chosen = |link| choose(&table, link, GidChoice::Automatic).map(|gid| gid.index);
        assert_eq!(chosen(LinkLayer::InfiniBand), Some(0));
        assert_eq!(chosen(LinkLayer::Ethernet), None);
    }
}
