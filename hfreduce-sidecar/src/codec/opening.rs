//! What is said when groups are opened.

use collective::machine::{Dispute, OpenReason, Opener};

use super::Unknown;

pub(super) fn opener_from_wire(opener: &wire::frame::Opener) -> Opener {
    Opener {
        rank: opener.rank,
        size: opener.size,
        checksum: opener.checksum,
    }
}

pub(super) fn opener_to_wire(opener: &Opener) -> wire::frame::Opener {
    wire::frame::Opener {
        rank: opener.rank,
        size: opener.size,
        checksum: opener.checksum,
    }
}

pub(super) fn open_reason_from_wire(reason: u8) -> Result<OpenReason, Unknown> {
    Ok(match reason {
        1 => OpenReason::Ranks,
        2 => OpenReason::Taken,
        3 => OpenReason::Groups,
        4 => OpenReason::Links,
        5 => OpenReason::Gateway,
        _ => return Err(Unknown("reason against a group")),
    })
}

pub(super) fn open_reason_to_wire(reason: OpenReason) -> u8 {
    match reason {
        OpenReason::Ranks => 1,
        OpenReason::Taken => 2,
        OpenReason::Groups => 3,
        OpenReason::Links => 4,
        OpenReason::Gateway => 5,
    }
}

pub(super) fn dispute_from_wire(dispute: &wire::frame::Dispute) -> Result<Dispute, Unknown> {
    Ok(match dispute {
        wire::frame::Dispute::Mismatch { one, other } => Dispute::Mismatch {
            one: opener_from_wire(one),
            other: opener_from_wire(other),
        },
        wire::frame::Dispute::Refused { opener, reason } => Dispute::Refused {
            opener: opener_from_wire(opener),
            reason: open_reason_from_wire(*reason)?,
        },
    })
}

pub(super) fn dispute_to_wire(dispute: &Dispute) -> wire::frame::Dispute {
    match dispute {
        Dispute::Mismatch { one, other } => wire::frame::Dispute::Mismatch {
            one: opener_to_wire(one),
            other: opener_to_wire(other),
        },
        Dispute::Refused { opener, reason } => wire::frame::Dispute::Refused {
            opener: opener_to_wire(opener),
            reason: open_reason_to_wire(*reason),
        },
    }
}
