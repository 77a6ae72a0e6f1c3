//! What clients and members say to each other as bytes: a header of one size, then a list if the frame has one (records
//! or versions), then bytes of a chunk. Parsing is total. There is one way to write each frame: what a frame does not say
//! is zero.

use crc32c::crc32c;

use crate::message::{ChainRefusal, ChainRequest, ChunkWrite, Edit, Message, Reply, Update};
use crate::records::{MOST_RECORDS, Record, Records};
use crate::table::{ChunkId, SessionId, Version};

/// Bytes of every header: two cache lines, and a slot of verbs holds it.
pub const HEADER_BYTES: usize = 128;
/// The longest chunk.
pub const MOST_CHUNK_BYTES: u32 = 4 << 20;
/// A file has fewer chunks: 4 EiB of them.
pub const MOST_CHUNKS: u64 = 1 << 40;
/// Versions that one frame lists.
pub const MOST_VERSIONS: usize = 1024;
/// Version of the frames.
pub const VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"FFST";
const SUM_BYTES: usize = 4;
const RECORD_BYTES: usize = 16;
const VERSION_BYTES: usize = 32;
/// A write is answered when it is on the disks. There is no other kind yet.
const DURABLE: u8 = 1;

/// Why bytes are no frame. The connection is of no use afterwards: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else is sent over it.
    #[error("failed to parse a frame: it does not begin with our magic")]
    Magic,
    /// The sender is older or newer.
    #[error("failed to parse a frame: its version is {0}, this side speaks {VERSION}")]
    Version(u8),
    /// The header was damaged.
    #[error("failed to parse a frame: its checksum does not match")]
    Checksum,
    /// A field holds what it cannot hold.
    #[error("failed to parse a frame: its {0} is out of bounds")]
    Field(&'static str),
}

/// What is said of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainFrame<P> {
    /// By a member to a member.
    Message(Message<P>),
    /// By a client. The answer has the same number.
    Request {
        number: u64,
        request: ChainRequest<P>,
    },
    /// The answer without bytes.
    Reply { number: u64, reply: Reply },
    /// The answer to a read.
    Bytes {
        number: u64,
        version: Version,
        bytes: P,
    },
}

/// A frame as bytes: the header, the list, and what follows of a chunk.
#[derive(Clone, Debug)]
pub struct Encoded<'a, P> {
    pub header: FrameHeader,
    pub list: Vec<u8>,
    pub bytes: Option<&'a P>,
}

/// A header that is valid by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Which chain it is about, and at which version its sender has it.
    pub chain: u64,
    pub version: u64,
    fields: Fields,
}

/// What frames say, in the order in which it lies there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    kind: u8,
    code: u8,
    flags: u8,
    chunk: [u64; 2],
    version: [u64; 2],
    other: [u64; 2],
    numbers: [u64; 4],
    places: [u32; 2],
    list_bytes: u32,
    chunk_bytes: u32,
}

/// A frame of a chain. `length` says how many bytes a piece of a chunk has.
pub fn encode<P>(
    (chain, version): (u64, u64),
    frame: &ChainFrame<P>,
    length: impl Fn(&P) -> u32,
) -> Encoded<'_, P> {
    let (mut fields, list, bytes) = fields(frame);
    fields.list_bytes = list.len() as u32;
    fields.chunk_bytes = bytes.map_or(0, length);
    let header = FrameHeader {
        chain,
        version,
        fields,
    };
    Encoded {
        header,
        list,
        bytes,
    }
}

impl FrameHeader {
    /// The header that bytes stand for.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let (content, sum) = bytes.split_at(HEADER_BYTES - SUM_BYTES);
        let mut reader = Reader(content);
        if reader.take() != MAGIC {
            return Err(Error::Magic);
        }
        let [version, kind, code, flags] = reader.take();
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if crc32c(content).to_le_bytes() != sum {
            return Err(Error::Checksum);
        }
        let (chain, version) = (reader.u64(), reader.u64());
        let fields = Fields {
            kind,
            code,
            flags,
            chunk: [reader.u64(), reader.u64()],
            version: [reader.u64(), reader.u64()],
            other: [reader.u64(), reader.u64()],
            numbers: [reader.u64(), reader.u64(), reader.u64(), reader.u64()],
            places: [reader.u32(), reader.u32()],
            list_bytes: reader.u32(),
            chunk_bytes: reader.u32(),
        };
        if reader.u32() != 0 {
            return Err(Error::Field("end"));
        }
        if fields.list_bytes as usize > MOST_VERSIONS * VERSION_BYTES {
            return Err(Error::Field("list"));
        }
        if fields.chunk[1] >= MOST_CHUNKS {
            return Err(Error::Field("chunk"));
        }
        if fields.chunk_bytes > MOST_CHUNK_BYTES {
            return Err(Error::Field("payload"));
        }
        Ok(Self {
            chain,
            version,
            fields,
        })
    }

    /// The bytes that [`FrameHeader::parse`] takes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let Self {
            chain,
            version,
            fields,
        } = self;
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, fields.kind, fields.code, fields.flags]);
        let words = [[chain, version], fields.chunk, fields.version, fields.other];
        let words = words.iter().flatten().chain(&fields.numbers);
        bytes.extend(words.flat_map(|word| word.to_le_bytes()));
        let places = [fields.list_bytes, fields.chunk_bytes, 0];
        let places = fields.places.iter().chain(&places);
        bytes.extend(places.flat_map(|place| place.to_le_bytes()));
        bytes.extend(crc32c(&bytes).to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Bytes of the list behind the header.
    #[must_use]
    pub fn list_bytes(&self) -> usize {
        self.fields.list_bytes as usize
    }

    /// Bytes of a chunk behind the list.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.fields.chunk_bytes as usize
    }

    /// The frame, from its list and its bytes of a chunk, which are as many as the header says.
    pub fn frame<P>(&self, list: &[u8], bytes: P) -> Result<ChainFrame<P>, Error> {
        let frame = frame(&self.fields, list, bytes)?;
        let (mut same, again, kept) = fields(&frame);
        same.list_bytes = again.len() as u32;
        same.chunk_bytes = kept.map_or(0, |_| self.fields.chunk_bytes);
        let is_same = same == self.fields && again == list;
        is_same.then_some(frame).ok_or(Error::Field("rest"))
    }
}

/// What a frame says in each field, but for lengths; its list, and its bytes of a chunk.
fn fields<P>(frame: &ChainFrame<P>) -> (Fields, Vec<u8>, Option<&P>) {
    let of = |kind| Fields {
        kind,
        ..Fields::default()
    };
    let about = |kind, chunk: &ChunkId, version: &Version| Fields {
        chunk: [chunk.file, chunk.index],
        version: [version.chain, version.update],
        ..of(kind)
    };
    let plain = |fields| (fields, Vec::new(), None);
    match frame {
        ChainFrame::Message(Message::Hello) => plain(of(1)),
        ChainFrame::Message(Message::Update(update)) => {
            let (code, place, bytes) = edit_fields(&update.edit);
            let fields = Fields {
                code,
                other: [update.base.chain, update.base.update],
                places: [place, 0],
                ..about(2, &update.chunk, &update.version)
            };
            (fields, records_list(&update.records), bytes)
        }
        ChainFrame::Message(Message::Done { chunk, version }) => plain(about(3, chunk, version)),
        ChainFrame::Message(Message::Refused {
            chunk,
            version,
            why,
        }) => {
            let (code, current) = refusal_fields(*why);
            plain(Fields {
                code,
                numbers: [0, current, 0, 0],
                ..about(4, chunk, version)
            })
        }
        ChainFrame::Message(Message::NeedsAll { chunk, version }) => {
            plain(about(5, chunk, version))
        }
        ChainFrame::Message(Message::Forget { chunk, version }) => plain(about(12, chunk, version)),
        ChainFrame::Message(Message::Missing { chunk, version }) => {
            plain(about(13, chunk, version))
        }
        ChainFrame::Message(Message::Query { read, chunk }) => plain(Fields {
            numbers: [*read, 0, 0, 0],
            ..about(6, chunk, &Version::NONE)
        }),
        ChainFrame::Message(Message::Committed { read, version }) => plain(Fields {
            numbers: [*read, 0, 0, 0],
            version: [version.chain, version.update],
            ..of(7)
        }),
        ChainFrame::Message(Message::List { after }) => plain(after_fields(of(8), *after, 0)),
        ChainFrame::Message(Message::Versions {
            after,
            versions,
            is_last,
        }) => {
            let words = |(chunk, version): &(ChunkId, Version)| {
                [chunk.file, chunk.index, version.chain, version.update]
            };
            let words = versions.iter().flat_map(words);
            let list = words.flat_map(u64::to_le_bytes).collect();
            let is_last = u8::from(*is_last) << 1;
            (after_fields(of(9), *after, is_last), list, None)
        }
        ChainFrame::Message(Message::Fetch { chunk, version }) => plain(Fields {
            code: version.is_some().into(),
            ..about(10, chunk, &version.unwrap_or_default())
        }),
        ChainFrame::Message(Message::Content {
            chunk,
            version,
            content,
            records,
        }) => {
            let fields = Fields {
                code: content.is_some().into(),
                ..about(11, chunk, version)
            };
            (fields, records_list(records), content.as_ref())
        }
        ChainFrame::Request {
            number,
            request: ChainRequest::Write(write),
        } => {
            let (code, place, bytes) = edit_fields(&write.edit);
            let fields = Fields {
                code,
                flags: DURABLE,
                numbers: [*number, write.session.0, write.number, write.settled],
                places: [place, 0],
                ..about(16, &write.chunk, &Version::NONE)
            };
            (fields, Vec::new(), bytes)
        }
        ChainFrame::Request {
            number,
            request:
                ChainRequest::Read {
                    chunk,
                    offset,
                    length,
                },
        } => plain(Fields {
            numbers: [*number, 0, 0, 0],
            places: [*offset, *length],
            ..about(17, chunk, &Version::NONE)
        }),
        ChainFrame::Reply { number, reply } => {
            let (kind, (code, current)) = match reply {
                Reply::Done => (18, (0, 0)),
                Reply::Refused(why) => (19, refusal_fields(*why)),
            };
            plain(Fields {
                code,
                numbers: [*number, current, 0, 0],
                ..of(kind)
            })
        }
        ChainFrame::Bytes {
            number,
            version,
            bytes,
        } => {
            let fields = Fields {
                numbers: [*number, 0, 0, 0],
                version: [version.chain, version.update],
                ..of(20)
            };
            (fields, Vec::new(), Some(bytes))
        }
    }
}

/// The frame that says what fields do. That they say nothing else is for the caller to look.
fn frame<P>(fields: &Fields, list: &[u8], bytes: P) -> Result<ChainFrame<P>, Error> {
    let [file, index] = fields.chunk;
    let chunk = ChunkId { file, index };
    let version = version(fields.version);
    let [number, second, third, fourth] = fields.numbers;
    let after = (fields.code & 1 == 1).then_some(chunk);
    Ok(match fields.kind {
        1 => ChainFrame::Message(Message::Hello),
        2 => ChainFrame::Message(Message::Update(Update {
            chunk,
            version,
            base: self::version(fields.other),
            edit: edit(fields, bytes)?,
            records: records(list)?,
        })),
        3 => ChainFrame::Message(Message::Done { chunk, version }),
        4 => ChainFrame::Message(Message::Refused {
            chunk,
            version,
            why: refusal(fields)?,
        }),
        5 => ChainFrame::Message(Message::NeedsAll { chunk, version }),
        6 => ChainFrame::Message(Message::Query {
            read: number,
            chunk,
        }),
        7 => ChainFrame::Message(Message::Committed {
            read: number,
            version,
        }),
        8 => ChainFrame::Message(Message::List { after }),
        9 => ChainFrame::Message(Message::Versions {
            after,
            versions: versions(list)?,
            is_last: fields.code & 2 == 2,
        }),
        10 => ChainFrame::Message(Message::Fetch {
            chunk,
            version: (fields.code == 1).then_some(version),
        }),
        11 => ChainFrame::Message(Message::Content {
            chunk,
            version,
            content: (fields.code == 1).then_some(bytes),
            records: records(list)?,
        }),
        12 => ChainFrame::Message(Message::Forget { chunk, version }),
        13 => ChainFrame::Message(Message::Missing { chunk, version }),
        // Clients replace nothing.
        16 if fields.code != 4 => ChainFrame::Request {
            number,
            request: ChainRequest::Write(ChunkWrite {
                session: SessionId(second),
                number: third,
                settled: fourth,
                chunk,
                edit: edit(fields, bytes)?,
            }),
        },
        17 => ChainFrame::Request {
            number,
            request: ChainRequest::Read {
                chunk,
                offset: fields.places[0],
                length: fields.places[1],
            },
        },
        18 => ChainFrame::Reply {
            number,
            reply: Reply::Done,
        },
        19 => ChainFrame::Reply {
            number,
            reply: Reply::Refused(refusal(fields)?),
        },
        20 => ChainFrame::Bytes {
            number,
            version,
            bytes,
        },
        _ => return Err(Error::Field("kind")),
    })
}

const fn version([chain, update]: [u64; 2]) -> Version {
    Version { chain, update }
}

fn after_fields(fields: Fields, after: Option<ChunkId>, code: u8) -> Fields {
    Fields {
        code: code | u8::from(after.is_some()),
        chunk: after.map_or([0, 0], |after| [after.file, after.index]),
        ..fields
    }
}

const fn edit_fields<P>(edit: &Edit<P>) -> (u8, u32, Option<&P>) {
    match edit {
        Edit::Write { offset, bytes } => (1, *offset, Some(bytes)),
        Edit::Truncate { length } => (2, *length, None),
        Edit::Remove => (3, 0, None),
        Edit::Replace { content } => (4, 0, Some(content)),
    }
}

/// An edit, within the longest chunk.
fn edit<P>(fields: &Fields, bytes: P) -> Result<Edit<P>, Error> {
    let place = fields.places[0];
    let has_room = place.checked_add(fields.chunk_bytes);
    if has_room.is_none_or(|end| end > MOST_CHUNK_BYTES) {
        return Err(Error::Field("place"));
    }
    Ok(match fields.code {
        1 => Edit::Write {
            offset: place,
            bytes,
        },
        2 => Edit::Truncate { length: place },
        3 => Edit::Remove,
        4 => Edit::Replace { content: bytes },
        _ => return Err(Error::Field("edit")),
    })
}

const fn refusal_fields(why: ChainRefusal) -> (u8, u64) {
    match why {
        ChainRefusal::WrongVersion { current } => (1, current),
        ChainRefusal::NotHead => (2, 0),
        ChainRefusal::NotReady => (3, 0),
        ChainRefusal::NoSession => (4, 0),
        ChainRefusal::Old => (5, 0),
        ChainRefusal::Busy => (6, 0),
        ChainRefusal::Full => (7, 0),
        ChainRefusal::Damaged => (8, 0),
    }
}

const fn refusal(fields: &Fields) -> Result<ChainRefusal, Error> {
    Ok(match fields.code {
        1 => ChainRefusal::WrongVersion {
            current: fields.numbers[1],
        },
        2 => ChainRefusal::NotHead,
        3 => ChainRefusal::NotReady,
        4 => ChainRefusal::NoSession,
        5 => ChainRefusal::Old,
        6 => ChainRefusal::Busy,
        7 => ChainRefusal::Full,
        8 => ChainRefusal::Damaged,
        _ => return Err(Error::Field("refusal")),
    })
}

/// The records of a chunk as bytes; a store keeps them so, too.
#[must_use]
pub fn records_list(records: &Records) -> Vec<u8> {
    let words = records.as_slice().iter();
    let words = words.flat_map(|record| [record.session.0, record.number]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The records that bytes stand for.
pub fn records(list: &[u8]) -> Result<Records, Error> {
    let (records, rest) = list.as_chunks::<RECORD_BYTES>();
    if !rest.is_empty() || records.len() > MOST_RECORDS {
        return Err(Error::Field("records"));
    }
    let record = |bytes: &[u8; RECORD_BYTES]| {
        let mut reader = Reader(bytes);
        Record {
            session: SessionId(reader.u64()),
            number: reader.u64(),
        }
    };
    Records::new(records.iter().map(record).collect()).ok_or(Error::Field("records"))
}

fn versions(list: &[u8]) -> Result<Vec<(ChunkId, Version)>, Error> {
    let (versions, rest) = list.as_chunks::<VERSION_BYTES>();
    let one = |bytes: &[u8; VERSION_BYTES]| {
        let mut reader = Reader(bytes);
        let chunk = ChunkId {
            file: reader.u64(),
            index: reader.u64(),
        };
        (chunk, version([reader.u64(), reader.u64()]))
    };
    let versions: Vec<_> = versions.iter().map(one).collect();
    let are_chunks = versions.iter().all(|(chunk, _)| chunk.index < MOST_CHUNKS);
    match rest {
        [] if are_chunks => Ok(versions),
        _ => Err(Error::Field("versions")),
    }
}

/// Takes fields off the front; zeros behind the end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
