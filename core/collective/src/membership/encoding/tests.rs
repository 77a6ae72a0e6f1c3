//! Frames and messages at both ends of the control stream.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

fn spoken() -> Vec<ToOperator> {
    vec![
        ToOperator::Hello {
            version: "0.1.0".to_owned(),
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            port: 9404,
            joined_epoch: Some(1),
            features: Features::OURS.list(),
        },
        ToOperator::Joined { epoch: 1 },
        ToOperator::Heartbeat {
            progress: None,
            operations: Some(7),
        },
        ToOperator::Suspect {
            epoch: 1,
            rank: 3,
            reason: SuspicionReason::Frozen,
            detail: "nothing for 2 s".to_owned(),
        },
        ToOperator::Recovered { epoch: 1, rank: 3 },
        ToOperator::Leaving,
    ]
}

#[test]
fn the_largest_gang_fits_one_frame() {
    let nodes = (0..10_000)
        .map(|rank| Peer {
            rank,
            address: "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap(),
            port: u16::MAX,
        })
        .collect();
    let roster = ToSidecar::Roster { epoch: 1, nodes };
    let mut decoder = Decoder::default();
    decoder.push(&encode(&roster).unwrap());
    assert_eq!(decoder.next().unwrap(), Some(roster));
}

/// One of each kind, as it travels.
fn kinds<T: Serialize>(messages: &[T]) -> Vec<String> {
    let kind = |message| {
        serde_json::to_value(message).unwrap()["kind"]
            .as_str()
            .map(str::to_owned)
    };
    messages.iter().filter_map(kind).collect()
}

#[test]
fn a_message_of_an_unknown_kind_is_skipped_and_the_next_is_read() {
    let unknown = serde_json::json!({"kind": "interrupt", "deadline": [1, {"a": null}]});
    let mut decoder = Decoder::<ToOperator>::default();
    for frame in [
        encode(&unknown),
        encode(&ToOperator::Leaving),
        encode(&unknown),
    ] {
        decoder.push(&frame.unwrap());
    }
    assert_eq!(decoder.next().unwrap(), Some(ToOperator::Leaving));
    assert_eq!(decoder.next().unwrap(), None);
    assert_eq!(decoder.skipped(), 2);
    let mut decoder = Decoder::<ToSidecar>::default();
    decoder.push(&encode(&unknown).unwrap());
    assert_eq!((decoder.next().unwrap(), decoder.skipped()), (None, 1));
}

#[test]
fn a_message_of_a_known_kind_that_makes_no_sense_and_one_without_a_kind_end_the_stream() {
    for nonsense in [
        serde_json::json!({"kind": "joined", "epoch": "one"}),
        serde_json::json!({"epoch": 1}),
        serde_json::json!([]),
    ] {
        let mut decoder = Decoder::<ToOperator>::default();
        decoder.push(&encode(&nonsense).unwrap());
        assert!(matches!(decoder.next(), Err(Error::Parse(_))), "{nonsense}");
    }
}

#[test]
fn every_kind_is_known() {
    let mut all = spoken();
    all.push(ToOperator::RankLost);
    all.push(ToOperator::Stopped {
        epoch: 1,
        report: EpochReport::new(),
        reached: Vec::new(),
        unreached: Vec::new(),
    });
    let (mut ours, mut known) = (kinds(&all), ToOperator::KINDS.to_vec());
    ours.sort();
    known.sort_unstable();
    assert_eq!(ours, known);
    let (epoch, reason) = (1, String::new());
    let all = [
        ToSidecar::Redirect {
            address: SocketAddr::from(([192, 0, 2, 1], 9443)),
        },
        ToSidecar::Roster {
            epoch,
            nodes: Vec::new(),
        },
        ToSidecar::Go { epoch },
        ToSidecar::Revoke {
            epoch,
            members: Vec::new(),
        },
        ToSidecar::Next {
            epoch,
            members: Vec::new(),
            resume: Resume::new(),
        },
        ToSidecar::Retry {
            reason: reason.clone(),
        },
        ToSidecar::Stacks {
            reason: reason.clone(),
        },
        ToSidecar::Refused {
            reason,
            void: false,
        },
    ];
    assert_eq!(kinds(&all), ToSidecar::KINDS);
}

#[test]
fn features_that_are_not_known_are_not_used_and_those_that_are_arrive() {
    assert_eq!(Features::of(&Features::OURS.list()), Features::OURS);
    assert_eq!(Features::of(&["later".to_owned()]), Features::default());
    let old =
        serde_json::json!({"kind": "hello", "version": "0", "address": "192.0.2.1", "port": 1});
    let hello: ToOperator = serde_json::from_value(old).unwrap();
    assert!(matches!(hello, ToOperator::Hello { features, .. } if features.is_empty()));
}

#[test]
fn what_an_older_sidecar_says_of_progress_and_what_a_later_one_adds_are_read() {
    let read = |text: &str| serde_json::from_str::<ToOperator>(text).unwrap();
    let beat = |operations| ToOperator::Heartbeat {
        progress: None,
        operations,
    };
    assert_eq!(read(r#"{"kind":"heartbeat"}"#), beat(None));
    let later = r#"{"kind":"heartbeat","operations":7,"temperature":[1]}"#;
    assert_eq!(read(later), beat(Some(7)));
    let before = Features::of(&["retry".to_owned()]);
    assert!(before.retry && !before.stacks);
}

#[test]
fn what_may_be_large_shows_in_its_first_bytes() {
    let stopped = ToOperator::Stopped {
        epoch: 1,
        report: EpochReport::new(),
        reached: Vec::new(),
        unreached: Vec::new(),
    };
    let mut decoder = Decoder::<ToOperator>::default();
    let frame = encode(&stopped).unwrap();
    let (length, mut errors) = (frame.len() - LENGTH_BYTES, Vec::new());
    for byte in &frame[..frame.len() - 1] {
        decoder.push(&[*byte]);
        assert!(decoder.next().unwrap().is_none());
        errors.extend(
            decoder
                .unfinished()
                .map(|(of, body)| (of, is_stopped(body))),
        );
    }
    assert!(errors.iter().all(|(of, _)| *of == length));
    let errors: Vec<_> = errors.into_iter().map(|(_, error)| error).collect();
    assert_eq!(
        (errors.first(), errors.last()),
        (Some(&None), Some(&Some(true)))
    );
    assert_eq!(is_stopped(br#"{"kind":"hello""#), Some(false));
}

#[test]
fn a_frame_as_long_as_the_limit_passes_and_one_byte_more_is_refused_at_both_ends() {
    let suspect = |padding: usize| ToOperator::Suspect {
        epoch: 1,
        rank: 1,
        reason: SuspicionReason::Dead,
        detail: "x".repeat(padding),
    };
    let around = encode(&suspect(0)).unwrap().len() - LENGTH_BYTES;
    let longest = suspect(FRAME_LIMIT_BYTES - around);
    let mut decoder = Decoder::default();
    decoder.push(&encode(&longest).unwrap());
    assert_eq!(decoder.next().unwrap(), Some(longest));
    assert!(
        decoder.bytes.capacity() <= TO_OPERATOR_LIMIT_BYTES,
        "it keeps no room"
    );
    let longer = encode(&suspect(FRAME_LIMIT_BYTES - around + 1));
    assert!(matches!(longer, Err(Error::TooLarge(length)) if length == FRAME_LIMIT_BYTES + 1));
    decoder.push(&(FRAME_LIMIT_BYTES as u32 + 1).to_le_bytes());
    assert!(matches!(decoder.next(), Err(Error::TooLarge(_))));
}

#[test]
fn a_length_out_of_bounds_is_refused_before_anything_is_kept() {
    let mut decoder = Decoder::<ToOperator>::default();
    decoder.push(&u32::MAX.to_le_bytes());
    assert!(matches!(decoder.next(), Err(Error::TooLarge(_))));
}

#[test]
fn long_text_is_cut_between_characters() {
    let cut = text(&"é".repeat(1000));
    assert!(cut.len() <= TEXT_LIMIT_BYTES && cut.len() > TEXT_LIMIT_BYTES - 2);
}

proptest! {
    #[test]
    fn messages_survive_any_cut_of_the_stream(cuts in prop::collection::vec(1usize..40, 1..60)) {
        let stream: Vec<u8> = spoken().iter().flat_map(|m| encode(m).unwrap()).collect();
        let mut decoder = Decoder::<ToOperator>::default();
        let (mut received, mut rest) = (Vec::new(), stream.as_slice());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            decoder.push(now);
            rest = later;
            while let Some(message) = decoder.next().unwrap() {
                received.push(message);
            }
        }
        prop_assert_eq!(received, spoken());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut decoder = Decoder::<ToSidecar>::default();
        for part in bytes.chunks(7) {
            decoder.push(part);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }
}
