//! Queue pairs of reliable connections: their ends as peers exchange them, connecting, and posting writes. Nothing
//! here waits; what became of a request is in the completion queue.

use std::ffi::c_uint;
use std::hash::{BuildHasher as _, RandomState};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::abi;
use super::{CompletionQueue, Domain, Error, Gid, Port, RegionSource};

/// Queue pair numbers and packet sequence numbers have 24 bits.
const NUMBER_LIMIT: u32 = 1 << 24;

/// How much may be under way on a pair.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// Requests that were posted and have not completed.
    pub sends: u32,
    /// Receive requests that were posted and not used.
    pub receives: u32,
    /// Bytes that a request may carry inside it, if the device can.
    pub inline_bytes: u32,
}

/// How packets travel, and how long a peer may be silent.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// An answer is awaited for 4.096 us times two to this; 14 is 67 ms.
    pub timeout: u8,
    /// How often a packet is sent again before the peer is given up; with the timeout above, half a second. Not 7,
    /// the most there is: Linux's software device takes that for "for ever".
    pub retries: u8,
    /// How often when the peer has no receive request; 7 means for ever.
    pub receiver_retries: u8,
    /// InfiniBand's service level, 0 to 15.
    pub service_level: u8,
    /// The traffic class of IP packets, of which the upper six bits are the DSCP.
    pub traffic_class: u8,
    /// Routers that a packet may cross.
    pub hop_limit: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            timeout: 14,
            retries: 6,
            receiver_retries: 7,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

/// Fewest tries after the first: a lost packet is no lost peer.
const LEAST_RETRIES: u8 = 3;
/// Most that are not "for ever" on some device.
const MOST_RETRIES: u8 = 6;
/// Shortest and longest timeout, in the code of the verbs: 67 ms and, of five bits, 2.4 hours.
const TIMEOUTS: std::ops::RangeInclusive<u8> = 14..=31;

impl PathOptions {
    /// Waits at least so long for a peer that does not answer, and not much longer: as far as the verbs can say it.
    #[must_use]
    pub fn lasting(self, patience: Duration) -> Self {
        let retries = LEAST_RETRIES..=MOST_RETRIES;
        let pairs = TIMEOUTS.flat_map(|timeout| retries.clone().map(move |tries| (timeout, tries)));
        let paths = pairs.map(|(timeout, retries)| Self {
            timeout,
            retries,
            ..self
        });
        let enough = paths.filter(|path| path.patience() >= patience);
        enough.min_by_key(|path| path.patience()).unwrap_or(Self {
            timeout: *TIMEOUTS.end(),
            retries: MOST_RETRIES,
            ..self
        })
    }

    /// How long a peer may be silent before it is given up.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let once = Duration::from_nanos(4096) * (1 << u32::from(self.timeout.min(*TIMEOUTS.end())));
        once * (u32::from(self.retries) + 1)
    }
}

/// One end of a connection, as the other has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEndpoint {
    /// The queue pair's number.
    pub pair: u32,
    /// The first packet's number.
    pub psn: u32,
    /// The port's GID.
    pub gid: [u8; 16],
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// Largest packet, in the code of the verbs.
    pub mtu: u8,
    /// Whether its port is reached by its GID only. One end's need is both ends'.
    pub by_gid: bool,
}

impl PairEndpoint {
    /// Bytes of one.
    pub const BYTES: usize = 28;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.pair.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        bytes[26] = self.mtu;
        bytes[27] = self.by_gid.into();
        bytes
    }

    /// What bytes stand for.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self, Error> {
        let number = |at: usize| {
            let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_le_bytes(word)
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..24]);
        let endpoint = Self {
            pair: number(0),
            psn: number(4),
            gid,
            lid: u16::from_le_bytes([bytes[24], bytes[25]]),
            mtu: bytes[26],
            by_gid: bytes[27] == 1,
        };
        match endpoint {
            _ if endpoint.pair >= NUMBER_LIMIT => Err(Error::Peer("queue pair number")),
            _ if endpoint.psn >= NUMBER_LIMIT => Err(Error::Peer("packet sequence number")),
            _ if !(1..=5).contains(&endpoint.mtu) => Err(Error::Peer("MTU")),
            _ if bytes[27] > 1 => Err(Error::Peer("way of addressing")),
            _ => Ok(endpoint),
        }
    }
}

/// A write into the peer's memory.
#[derive(Debug)]
pub struct Write<'a> {
    /// What its completion is called.
    pub id: u64,
    /// What is written; nothing, for a write that only says its number.
    pub source: Option<&'a RegionSource>,
    /// Where to; of a peer's region, as many bytes as the source has.
    pub address: u64,
    /// The key of that region.
    pub key: u32,
    /// A number that the peer receives after the bytes, with a completion.
    pub number: Option<u32>,
    /// Whether it has a completion here.
    pub signaled: bool,
}

/// A queue pair of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<Domain>,
    completions: Arc<CompletionQueue>,
    raw: NonNull<abi::IbvQueuePair>,
    port: u8,
    gid: u8,
    endpoint: PairEndpoint,
    inline_bytes: u32,
}

// SAFETY: the library may be called from any thread, and locks what it has to.
#[expect(unsafe_code, reason = "queue pairs may move between threads")]
unsafe impl Send for QueuePair {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "queue pairs may be shared between threads")]
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A pair that can be connected from the port; its completions go into one queue.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        port: &Port,
        gid: &Gid,
        options: PairOptions,
    ) -> Result<Self, Error> {
        let (raw, inline_bytes) = create(domain, completions, options, options.inline_bytes)
            // A device that carries less inside a request refuses, and not all say what they can.
            .or_else(|error| match options.inline_bytes {
                0 => Err(error),
                _ => create(domain, completions, options, 0),
            })?;
        let psn = RandomState::new().hash_one(0u8) as u32 % NUMBER_LIMIT;
        let mut pair = Self {
            domain: Arc::clone(domain),
            completions: Arc::clone(completions),
            raw,
            port: port.number,
            gid: gid.index,
            endpoint: PairEndpoint {
                pair: 0,
                psn,
                gid: gid.bytes,
                lid: port.lid,
                mtu: port.mtu,
                by_gid: port.by_gid,
            },
            inline_bytes,
        };
        pair.endpoint.pair = pair.number();
        let mut to = attributes();
        to.qp_state = abi::STATE_INIT;
        to.port_num = port.number;
        to.qp_access_flags = abi::ACCESS_REMOTE_WRITE;
        let mask = abi::MASK_STATE | abi::MASK_PKEY_INDEX | abi::MASK_PORT | abi::MASK_ACCESS_FLAGS;
        pair.modify("prepare a queue pair", &mut to, mask)?;
        Ok(pair)
    }

    /// This end, for the peer.
    pub fn endpoint(&self) -> PairEndpoint {
        self.endpoint
    }

    /// The pair's number, which its completions name.
    #[expect(unsafe_code, reason = "a structure of the library's")]
    pub fn number(&self) -> u32 {
        // SAFETY: the library made the structure and keeps it until the pair is dropped.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Bytes that a request may carry inside it.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Connects to the peer's end. Receive requests should have been posted before.
    pub fn connect(&mut self, peer: &PairEndpoint, path: PathOptions) -> Result<(), Error> {
        let mut to = attributes();
        to.qp_state = abi::STATE_READY_TO_RECEIVE;
        to.path_mtu = peer.mtu.min(self.endpoint.mtu).into();
        to.dest_qp_num = peer.pair;
        to.rq_psn = peer.psn;
        to.max_dest_rd_atomic = 1;
        // 0.64 ms, for a peer without receive requests: our channel never lets that happen.
        to.min_rnr_timer = 12;
        to.ah_attr.dlid = peer.lid;
        to.ah_attr.sl = path.service_level;
        to.ah_attr.port_num = self.port;
        to.ah_attr.is_global = (self.endpoint.by_gid || peer.by_gid).into();
        to.ah_attr.grh.dgid = peer.gid;
        to.ah_attr.grh.sgid_index = self.gid;
        to.ah_attr.grh.hop_limit = path.hop_limit;
        to.ah_attr.grh.traffic_class = path.traffic_class;
        let mask = abi::MASK_STATE
            | abi::MASK_ADDRESS
            | abi::MASK_PATH_MTU
            | abi::MASK_DEST_QPN
            | abi::MASK_RECEIVE_PSN
            | abi::MASK_MAX_DEST_READ_ATOMIC
            | abi::MASK_MIN_RNR_TIMER;
        self.modify("connect a queue pair to its peer", &mut to, mask)?;
        let mut to = attributes();
        to.qp_state = abi::STATE_READY_TO_SEND;
        to.timeout = path.timeout;
        to.retry_cnt = path.retries;
        to.rnr_retry = path.receiver_retries;
        to.sq_psn = self.endpoint.psn;
        to.max_rd_atomic = 1;
        let mask = abi::MASK_STATE
            | abi::MASK_TIMEOUT
            | abi::MASK_RETRY_COUNT
            | abi::MASK_RNR_RETRY
            | abi::MASK_SEND_PSN
            | abi::MASK_MAX_READ_ATOMIC;
        self.modify("let a queue pair send", &mut to, mask)
    }

    /// Gives the connection up: what is under way completes as given up, here and soon at the peer.
    pub fn fail(&mut self) -> Result<(), Error> {
        let mut to = attributes();
        to.qp_state = abi::STATE_ERROR;
        self.modify("give a queue pair up", &mut to, abi::MASK_STATE)
    }

    /// Makes room for one write of the peer's that says a number.
    #[expect(unsafe_code, reason = "a call into the library")]
    pub fn post_receive(&mut self, id: u64) -> Result<(), Error> {
        let mut request = abi::ReceiveRequest {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the pair is live; the request, which names no memory, is read before the call returns.
        let status = unsafe {
            let post = self.domain.context.raw.as_ref().ops.post_recv;
            post.map(|post| post(self.raw.as_ptr(), &raw mut request, &raw mut refused))
        };
        Error::check("post a receive request", status.unwrap_or(-1))
    }

    /// Posts a write. Refused when there is no room: the caller counts what is under way.
    #[expect(unsafe_code, reason = "a call into the library")]
    pub fn post_write(&mut self, write: &Write<'_>) -> Result<(), Error> {
        let mut piece = write.source.map(|source| source.piece);
        let bytes = piece.map_or(0, |piece| piece.length);
        let mut flags: c_uint = 0;
        if write.signaled {
            flags |= abi::SEND_SIGNALED;
        }
        if bytes > 0 && bytes <= self.inline_bytes {
            flags |= abi::SEND_INLINE;
        }
        let mut request = abi::SendRequest {
            wr_id: write.id,
            next: std::ptr::null_mut(),
            num_sge: piece.is_some().into(),
            sg_list: piece
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut),
            opcode: match write.number {
                Some(_) => abi::OP_WRITE_WITH_IMM,
                None => abi::OP_WRITE,
            },
            send_flags: flags,
            imm_data: write.number.unwrap_or(0).to_be(),
            remote_addr: write.address,
            rkey: write.key,
            unused: [0; 19],
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the pair is live; request and list are read before the call returns. The memory that is named was
        // mapped when its `Source` was made; the device reads it under that region's key only, which ends with the
        // region, before the mapping does.
        let status = unsafe {
            let post = self.domain.context.raw.as_ref().ops.post_send;
            post.map(|post| post(self.raw.as_ptr(), &raw mut request, &raw mut refused))
        };
        Error::check("post a write", status.unwrap_or(-1))
    }

    /// The queue that completions go to.
    pub fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    #[expect(unsafe_code, reason = "a call into the library")]
    fn modify(
        &mut self,
        doing: &'static str,
        to: &mut abi::PairAttributes,
        mask: i32,
    ) -> Result<(), Error> {
        // SAFETY: the pair is live; the library reads the attributes that the mask names.
        let status =
            unsafe { (self.domain.context.library.modify_pair)(self.raw.as_ptr(), to, mask) };
        Error::check(doing, status)
    }
}

impl Drop for QueuePair {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn drop(&mut self) {
        // SAFETY: made by the library and freed once, before the queue and the domain that it holds.
        unsafe { (self.domain.context.library.destroy_pair)(self.raw.as_ptr()) };
    }
}

#[expect(unsafe_code, reason = "a structure of C")]
fn attributes() -> abi::PairAttributes {
    // SAFETY: a structure of numbers, of which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// A pair and what it can carry inside a request.
#[expect(unsafe_code, reason = "a call into the library")]
fn create(
    domain: &Domain,
    completions: &CompletionQueue,
    options: PairOptions,
    inline_bytes: u32,
) -> Result<(NonNull<abi::IbvQueuePair>, u32), Error> {
    let mut init = abi::PairInit {
        qp_context: std::ptr::null_mut(),
        send_cq: completions.raw.as_ptr(),
        recv_cq: completions.raw.as_ptr(),
        srq: std::ptr::null_mut(),
        cap: abi::Capabilities {
            max_send_wr: options.sends,
            max_recv_wr: options.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        },
        qp_type: abi::PAIR_RELIABLE,
        sq_sig_all: 0,
    };
    // SAFETY: domain and queue are live; the structure is read, and filled in with what was given.
    let raw = unsafe { (domain.context.library.create_pair)(domain.raw.as_ptr(), &raw mut init) };
    let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a queue pair"))?;
    Ok((raw, init.cap.max_inline_data))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_endpoint_that_is_written_is_read(
            (pair, psn, gid) in (0..NUMBER_LIMIT, 0..NUMBER_LIMIT, any::<[u8; 16]>()),
            (lid, mtu, by_gid) in (any::<u16>(), 1u8..=5, any::<bool>()),
        ) {
            let endpoint = PairEndpoint { pair, psn, gid, lid, mtu, by_gid };
            prop_assert_eq!(PairEndpoint::parse(&endpoint.encode()).unwrap(), endpoint);
        }

        #[test]
        fn an_endpoint_is_refused_or_means_what_it_says(bytes in any::<[u8; PairEndpoint::BYTES]>()) {
            if let Ok(endpoint) = PairEndpoint::parse(&bytes) {
                prop_assert_eq!(endpoint.encode(), bytes);
                prop_assert!(endpoint.pair < NUMBER_LIMIT && endpoint.psn < NUMBER_LIMIT);
            }
        }
    }

    #[test]
    fn a_path_waits_as_long_as_it_is_asked_to_and_not_twice_as_long() {
        for (seconds, expected) in [(0.4, (14, 5)), (10.0, (19, 4)), (60.0, (21, 6))] {
            let wanted = Duration::from_secs_f64(seconds);
            let path = PathOptions::default().lasting(wanted);
            assert_eq!((path.timeout, path.retries), expected, "{seconds} s");
            let waits = path.patience();
            assert!(waits >= wanted && waits < wanted * 3 / 2, "{waits:?}");
        }
        let longest = PathOptions::default().lasting(Duration::MAX);
        assert_eq!((longest.timeout, longest.retries), (31, 6));
    }
}
