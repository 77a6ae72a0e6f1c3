//! What others than its members, and members that misbehave, cost the service.

use std::time::Instant;

use collective::membership::Commit;
use collective::membership::encoding::TO_OPERATOR_LIMIT_BYTES;
use tokio::net::TcpSocket;
use topology::OnPeerLoss;

use super::*;

/// A connection from one of these addresses that says nothing.
async fn idle(address: SocketAddr, source: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let source = Ipv4Addr::new(127, 2, 0, source);
    socket.bind((source, 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(DEADLINE, stream.read(&mut byte));
    !matches!(read.await.unwrap(), Ok(1..))
}

#[tokio::test]
async fn members_join_while_others_hold_a_thousand_idle_connections() {
    daemon::descriptors::raise_limit();
    for sources in [1u8, 50] {
        let running = start(Role::Leading, None).await;
        let address = running.address;
        let renewing = tokio::spawn(async move {
            let mut idle_ones = std::collections::VecDeque::new();
            for number in 0u64.. {
                let source = 1 + (number % u64::from(sources)) as u8;
                idle_ones.push_back(idle(address, source).await);
                if idle_ones.len() > 1_000 {
                    idle_ones.pop_front();
                }
            }
        });
        while running.metrics.refused.get() < 500 {
            assert!(!renewing.is_finished());
            tokio::task::yield_now().await;
        }
        let [_first, second] = going(address).await;
        // Its sidecar restarts meanwhile.
        drop(second);
        let mut received = Some(ToSidecar::Retry {
            reason: String::new(),
        });
        while let Some(ToSidecar::Retry { .. }) = received {
            received = Sidecar::hello(address, 1, Some(1)).await.receive().await;
        }
        assert_eq!(received, Some(ToSidecar::Go { epoch: 1 }));
        assert!(!renewing.is_finished());
        renewing.abort();
    }
}

#[tokio::test]
async fn a_connection_that_proves_nothing_ends_within_two_seconds() {
    let running = start(Role::Leading, None).await;
    let began = Instant::now();
    assert!(is_closed(&mut idle(running.address, 1).await).await);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn of_a_rank_one_connection_at_most_waits_to_say_hello() {
    let running = start(Role::Leading, None).await;
    let mut first = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    let mut other = Sidecar::dial(running.address, 1, 1, KEY).await.unwrap();
    let mut second = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    assert_eq!(first.receive().await, None);
    second.say_hello(0, None).await;
    other.say_hello(1, None).await;
    assert!(matches!(
        second.receive().await,
        Some(ToSidecar::Roster { .. })
    ));
    // Of ranks that there are not, none waits at all.
    let mut none = Sidecar::dial(running.address, 2, 1, KEY).await.unwrap();
    let Some(ToSidecar::Refused {
        reason,
        void: false,
    }) = none.receive().await
    else {
        panic!("not refused");
    };
    assert!(reason.contains("rank 2"), "{reason}");
}

#[tokio::test]
async fn a_second_connection_of_a_rank_dials_again_while_the_first_is_alive() {
    let running = start(Role::Leading, None).await;
    let [mut first, second] = going(running.address).await;
    let mut again = Sidecar::hello(running.address, 0, Some(1)).await;
    let Some(ToSidecar::Retry { reason }) = again.receive().await else {
        panic!("no order to dial again");
    };
    assert!(reason.contains("rank 0"), "{reason}");
    assert_eq!(again.receive().await, None);
    // One that does not know the word is closed without it.
    let mut old = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    let hello = serde_json::json!({
        "kind": "hello", "version": "0", "address": "10.0.0.1", "port": 9404, "joinedEpoch": 1,
    });
    old.stream
        .write_all(&encode(&hello).unwrap())
        .await
        .unwrap();
    assert_eq!(old.receive().await, None);
    // The first is none the worse for it.
    drop(second);
    let mut second = Sidecar::hello(running.address, 1, Some(1)).await;
    while let Some(ToSidecar::Retry { .. }) = second.receive().await {
        second = Sidecar::hello(running.address, 1, Some(1)).await;
    }
    first.say(&ToOperator::Leaving).await;
}

#[tokio::test]
async fn a_message_of_a_later_release_ends_no_stream() {
    let running = start(Role::Leading, None).await;
    let [mut first, second] = going(running.address).await;
    let unknown = serde_json::json!({"kind": "rehearsed", "seconds": 3});
    first
        .stream
        .write_all(&encode(&unknown).unwrap())
        .await
        .unwrap();
    let mut reports = running.reports.clone();
    first
        .say(&ToOperator::Suspect {
            epoch: 1,
            rank: 1,
            reason: SuspicionReason::Dead,
            detail: String::new(),
        })
        .await;
    until(&mut reports, |reports| !reports.suspects.is_empty()).await;
    drop((first, second));
    while running.metrics.skipped.get() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(running.metrics.skipped.get(), 1);
}

#[tokio::test]
async fn before_its_hello_a_rank_sends_no_long_report() {
    let running = start(Role::Leading, None).await;
    let mut early = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    let began = Instant::now();
    let length = u32::try_from(TO_OPERATOR_LIMIT_BYTES + 1).unwrap();
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(br#"{"kind":"stopped","epoch":1,"#);
    early.stream.write_all(&frame).await.unwrap();
    assert_eq!(early.receive().await, None);
    // Not when its time to say hello is over.
    assert!(began.elapsed() < Duration::from_secs(3));
}

/// The text of the operator's log: level `info` and above, of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let to = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || to.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    fn lines_with(&self, words: &str) -> usize {
        let log = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&log);
        text.lines().filter(|line| line.contains(words)).count()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut lines = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn who_is_refused_is_counted_and_fills_no_log() {
    const EACH: u64 = 20;
    let (log, _guard) = Log::begin();
    let running = start(Role::Leading, None).await;
    for _ in 0..EACH {
        let mut stranger = TcpStream::connect(running.address).await.unwrap();
        stranger
            .write_all(&[0xff; link::handshake::HELLO_BYTES])
            .await
            .unwrap();
        assert!(is_closed(&mut stranger).await);
        let with_another_key = Sidecar::dial(running.address, 0, 1, [8; KEY_BYTES]).await;
        assert!(with_another_key.is_none());
    }
    while running.metrics.refused.get() < 2 * EACH {
        tokio::task::yield_now().await;
    }
    assert_eq!(log.lines_with("serving the rendezvous"), 1);
    assert_eq!(log.lines_with("refused"), 0);
}

#[tokio::test]
async fn a_member_that_says_the_same_without_end_fills_no_log() {
    let (log, _guard) = Log::begin();
    let running = start(Role::Leading, None).await;
    let [mut first, _second] = going(running.address).await;
    let again = encode(&ToOperator::RankLost).unwrap();
    first.stream.write_all(&again.repeat(1_000)).await.unwrap();
    drop(first);
    // All were read before the end.
    while running.metrics.connections.get() > 1 {
        tokio::task::yield_now().await;
    }
    let lines = log.lines_with("a process of the trainer is gone");
    assert!((1..100).contains(&lines), "{lines}");
}

/// A store that answers on demand.
struct Late {
    answers: tokio::sync::Semaphore,
    store: InMemory,
}

/// It lives as long as its test.
impl CommitStore for &'static Late {
    fn last(
        &self,
        gang: Arc<Gang>,
    ) -> futures::future::BoxFuture<'static, Result<Option<Commit>, store::StoreError>> {
        let late: &'static Late = self;
        Box::pin(async move {
            let _answered = late.answers.acquire().await;
            late.store.last(gang).await
        })
    }

    fn commit(
        &self,
        gang: Arc<Gang>,
        commit: Commit,
        after: Option<u64>,
    ) -> futures::future::BoxFuture<'static, Result<(), Option<Commit>>> {
        self.store.commit(gang, commit, after)
    }
}

#[tokio::test]
async fn while_the_store_does_not_answer_what_sidecars_say_is_bounded() {
    let late: &'static Late = Box::leak(Box::new(Late {
        answers: tokio::sync::Semaphore::new(0),
        store: InMemory::default(),
    }));
    let mut one = gang(1, 2);
    Arc::make_mut(&mut one.gang).policy.on_peer_loss = OnPeerLoss::Shrink;
    let running = start_over(Arc::new(late), one, Role::Leading, None).await;
    let mut honest = Sidecar::hello(running.address, 0, None).await;
    let mut hostile = Sidecar::hello(running.address, 1, None).await;
    let again = encode(&ToOperator::Joined { epoch: 7 }).unwrap();
    for _ in 0..100 {
        // It may be cut off already.
        hostile.stream.write_all(&again.repeat(100)).await.ok();
    }
    assert_eq!(hostile.receive().await, None);
    let mut second = Sidecar::hello(running.address, 1, None).await;
    late.answers.add_permits(1);
    for sidecar in [&mut honest, &mut second] {
        assert!(matches!(
            sidecar.receive().await,
            Some(ToSidecar::Roster { .. })
        ));
    }
}

#[tokio::test]
async fn only_a_report_may_be_long() {
    let running = start(Role::Leading, None).await;
    let hello = |version: usize| ToOperator::Hello {
        version: "x".repeat(version),
        address: [10, 0, 0, 1].into(),
        port: 9404,
        joined_epoch: None,
        features: Vec::new(),
    };
    let around = encode(&hello(0)).unwrap().len() - 4;
    let mut fits = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    fits.say(&hello(TO_OPERATOR_LIMIT_BYTES - around)).await;
    let mut second = Sidecar::hello(running.address, 1, None).await;
    assert!(matches!(
        fits.receive().await,
        Some(ToSidecar::Roster { .. })
    ));
    assert!(matches!(
        second.receive().await,
        Some(ToSidecar::Roster { .. })
    ));
    let running = start(Role::Leading, None).await;
    let mut long = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    let frame = encode(&hello(TO_OPERATOR_LIMIT_BYTES - around + 1)).unwrap();
    // It is cut off as soon as the length is there, so the rest may not arrive.
    long.stream.write_all(&frame).await.ok();
    assert_eq!(long.receive().await, None);
}
