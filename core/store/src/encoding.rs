//! Commands, answers and messages as bytes. Whatever is read is checked: lengths against what is there, names against
//! the limits, and numbers of kinds against those that there are.

use std::collections::{BTreeMap, VecDeque};

use crate::call::{Answer, COMMAND_LIMIT_BYTES, Call, ClientId, Command, Failure, Value};
use crate::keys::{Keys, Last, Place, Session};
use crate::replica::{Message, Version};

/// Bytes that are none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read a message of the store: {0}")]
pub struct Malformed(&'static str);

type Read<T> = Result<T, Malformed>;

/// Bytes that are read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Read<&'a [u8]> {
        let split = self.0.split_at_checked(bytes);
        let (taken, rest) = split.ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn word<const N: usize>(&mut self) -> Read<[u8; N]> {
        let split = self.0.split_first_chunk();
        let (word, rest) = split.ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*word)
    }

    fn end(&self) -> Read<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed("something comes after its end")),
        }
    }
}

/// Something that is bytes on the way.
trait Encoded: Sized {
    fn write(&self, to: &mut Vec<u8>);
    fn read(from: &mut Reader<'_>) -> Read<Self>;
}

macro_rules! number {
    ($($of:ty),*) => {$(
        impl Encoded for $of {
            fn write(&self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }
            fn read(from: &mut Reader<'_>) -> Read<Self> {
                Ok(Self::from_le_bytes(from.word()?))
            }
        }
    )*};
}
number!(u8, u32, u64, i64);

/// Fields one after the other.
macro_rules! fields {
    ($of:ident { $($field:ident),* }) => {
        impl Encoded for $of {
            fn write(&self, to: &mut Vec<u8>) {
                $(self.$field.write(to);)*
            }
            fn read(from: &mut Reader<'_>) -> Read<Self> {
                Ok(Self { $($field: Encoded::read(from)?),* })
            }
        }
    };
}
fields!(ClientId { node, number });
fields!(Version { epoch, position });
fields!(Session { sequence, last });
fields!(Call {
    client,
    sequence,
    command
});
fields!(Keys {
    keys,
    queues,
    sessions,
    waiting,
    bytes
});

/// The number of a variant, then its fields.
macro_rules! variants {
    ($of:ident: $($number:literal $variant:ident $(($($field:ident),*))? $({$($name:ident),*})?;)*) => {
        impl Encoded for $of {
            fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($field),*))? $({$($name),*})? => {
                        to.push($number);
                        $($($field.write(to);)*)?
                        $($($name.write(to);)*)?
                    })*
                }
            }
            fn read(from: &mut Reader<'_>) -> Read<Self> {
                Ok(match u8::read(from)? {
                    $($number => Self::$variant
                        $(($({ let $field = Encoded::read(from)?; $field }),*))?
                        $({$($name: Encoded::read(from)?),*})?,)*
                    _ => return Err(Malformed(concat!("there is no such ", stringify!($of)))),
                })
            }
        }
    };
}
variants!(Command:
    0 Set(pairs);
    1 Get(keys);
    2 Wait(keys);
    3 Check(keys);
    4 Add(key, amount);
    5 CompareSet { key, expected, desired };
    6 Append(key, value);
    7 Delete(key);
    8 Count;
    9 Push(key, value);
    10 Pop(key);
    11 TryPop(key);
    12 Length(key);
    13 Cancel;
    14 Leave;
);
variants!(Answer:
    0 Done;
    1 Values(values);
    2 Number(number);
    3 Is(is);
    4 Nothing;
    5 Failed(why);
);
variants!(Failure:
    0 Full { wanted };
    1 TooLarge { wanted };
    2 NoNumber { key };
    3 Sessions;
    4 Lost;
);
variants!(Place:
    0 Key(key);
    1 Queue(key);
);
variants!(Last:
    0 Waits(command, place);
    1 Kept(answer);
    2 Read;
);
variants!(Message:
    0 Have(version);
    1 Fetch;
    2 State(version, keys);
    3 Begin(version, keys);
    4 Lost;
    5 Calls { after, calls, stable };
    6 Ask(number, call);
);

impl Encoded for bool {
    fn write(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("there is no such truth")),
        }
    }
}

fn write_length(length: usize, to: &mut Vec<u8>) {
    (length as u64).write(to);
}

fn read_length(from: &mut Reader<'_>) -> Read<usize> {
    let length = u64::read(from)?;
    // Everything that is counted takes a byte at least.
    match usize::try_from(length) {
        Ok(length) if length <= from.0.len() => Ok(length),
        Ok(_) | Err(_) => Err(Malformed("it ends too early")),
    }
}

impl Encoded for Value {
    fn write(&self, to: &mut Vec<u8>) {
        write_length(self.len(), to);
        to.extend_from_slice(self);
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        let length = read_length(from)?;
        Ok(from.take(length)?.into())
    }
}

impl Encoded for String {
    fn write(&self, to: &mut Vec<u8>) {
        write_length(self.len(), to);
        to.extend_from_slice(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        let length = read_length(from)?;
        let text = std::str::from_utf8(from.take(length)?);
        Ok(text.map_err(|_| Malformed("a key is no text"))?.to_owned())
    }
}

impl<T: Encoded> Encoded for Box<T> {
    fn write(&self, to: &mut Vec<u8>) {
        self.as_ref().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        T::read(from).map(Self::new)
    }
}

impl<T: Encoded> Encoded for Option<T> {
    fn write(&self, to: &mut Vec<u8>) {
        self.is_some().write(to);
        if let Some(some) = self {
            some.write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        bool::read(from)?.then(|| T::read(from)).transpose()
    }
}

impl<A: Encoded, B: Encoded> Encoded for (A, B) {
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

/// How many, then each.
macro_rules! many {
    ($($of:ident),*) => {$(
        impl<T: Encoded> Encoded for $of<T> {
            fn write(&self, to: &mut Vec<u8>) {
                write_length(self.len(), to);
                self.iter().for_each(|one| one.write(to));
            }
            fn read(from: &mut Reader<'_>) -> Read<Self> {
                let length = read_length(from)?;
                (0..length).map(|_| T::read(from)).collect()
            }
        }
    )*};
}
many!(Vec, VecDeque);

impl<K: Encoded + Ord, V: Encoded> Encoded for BTreeMap<K, V> {
    fn write(&self, to: &mut Vec<u8>) {
        write_length(self.len(), to);
        for (key, value) in self {
            key.write(to);
            value.write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Read<Self> {
        let length = read_length(from)?;
        (0..length).map(|_| <(K, V)>::read(from)).collect()
    }
}

fn encode(what: &impl Encoded) -> Vec<u8> {
    let mut bytes = Vec::new();
    what.write(&mut bytes);
    bytes
}

fn decode<T: Encoded>(bytes: &[u8]) -> Read<T> {
    let mut reader = Reader(bytes);
    let what = T::read(&mut reader)?;
    reader.end()?;
    Ok(what)
}

impl Command {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// A command of a client, within the limits. A client leaves by closing its connection.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let command: Self = decode(bytes)?;
        if command.bytes() > COMMAND_LIMIT_BYTES {
            return Err(Malformed(
                "its keys and contents are larger than a command may be",
            ));
        }
        if command == Self::Leave {
            return Err(Malformed("a client cannot say that"));
        }
        Ok(command)
    }
}

impl Answer {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        decode(bytes)
    }
}

impl Message {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// From bytes of a member.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        decode(bytes)
    }
}

#[cfg(test)]
mod tests;
