//! What a report costs whoever reads it. Alone in its process, whose memory it measures.
#![expect(clippy::unwrap_used, reason = "test harness")]

use collective::membership::Connection;
use collective::membership::encoding::{Decoder, FRAME_LIMIT_BYTES, ToOperator, event};

/// The most memory that this process has used, in bytes.
#[expect(clippy::disallowed_methods, reason = "the test measures its process")]
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1024
}

/// A frame of the largest size whose report repeats a value.
fn filled(value: &str) -> Vec<u8> {
    let (head, tail) = (
        r#"{"kind":"stopped","epoch":1,"report":["#,
        r#"0],"reached":[],"unreached":[]}"#,
    );
    let room = FRAME_LIMIT_BYTES - head.len() - tail.len();
    let body = format!("{head}{}{tail}", value.repeat(room / value.len()));
    let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(body.into_bytes());
    frame
}

#[test]
fn a_hostile_report_takes_no_more_than_a_few_times_its_length() {
    for value in [r#"{"":0},"#, "[],", "{},", r#""","#] {
        let frame = filled(value);
        let mut decoder = Decoder::<ToOperator>::default();
        let before = peak();
        decoder.push(&frame);
        let received = decoder
            .next()
            .map(|one| one.map(|message| event(Connection(1), 0, message)));
        assert!(received.is_err(), "{value}: {received:?}");
        let growth = peak() - before;
        assert!(growth <= 8 * FRAME_LIMIT_BYTES, "{value}: {growth} bytes");
    }
}
