//! Messages between ranks, and why a call cannot be carried out.

use collective::machine::{MessageId, Reason, Stream};

use super::Unknown;

pub(super) fn message_from_wire(message: &wire::frame::Message, number: u64) -> MessageId {
    MessageId {
        from: message.from,
        to: message.to,
        of: message.tag.map_or(Stream::Operation, Stream::Tag),
        number,
    }
}

pub(super) fn message_to_wire(message: &MessageId) -> wire::frame::Message {
    wire::frame::Message {
        from: message.from,
        to: message.to,
        tag: match message.of {
            Stream::Operation => None,
            Stream::Tag(tag) => Some(tag),
        },
    }
}

pub(super) fn maybe_reason(reason: u8) -> Result<Option<Reason>, Unknown> {
    match reason {
        0 => Ok(None),
        reason => reason_from_wire(reason).map(Some),
    }
}

pub(super) fn reason_from_wire(reason: u8) -> Result<Reason, Unknown> {
    Ok(match reason {
        1 => Reason::Root,
        2 => Reason::Size,
        3 => Reason::Input,
        4 => Reason::Limit,
        5 => Reason::Memory,
        6 => Reason::RootLost,
        7 => Reason::RanksLost,
        8 => Reason::NotReplicated,
        9 => Reason::Factor,
        10 => Reason::Parts,
        11 => Reason::Splits,
        12 => Reason::Closed,
        13 => Reason::Tags,
        14 => Reason::Left,
        _ => return Err(Unknown("reason of a refusal")),
    })
}

pub(super) fn reason_to_wire(reason: Reason) -> u8 {
    match reason {
        Reason::Root => 1,
        Reason::Size => 2,
        Reason::Input => 3,
        Reason::Limit => 4,
        Reason::Memory => 5,
        Reason::RootLost => 6,
        Reason::RanksLost => 7,
        Reason::NotReplicated => 8,
        Reason::Factor => 9,
        Reason::Parts => 10,
        Reason::Splits => 11,
        Reason::Closed => 12,
        Reason::Tags => 13,
        Reason::Left => 14,
    }
}
