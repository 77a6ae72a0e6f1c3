//! Single steps of one member, which the runs of whole chains reach too rarely to notice that they are wrong.

use craq::{
    ChainMember, ChainRefusal, ChunkId, Edit, Effect, Input, Message, Place, Records, Table,
    TargetId, Update, Version,
};

use crate::store::Store;

const CHUNK: ChunkId = ChunkId { file: 1, index: 0 };
const ABOVE: TargetId = TargetId(0);
const BELOW: TargetId = TargetId(2);

fn version(update: u64) -> Version {
    Version { chain: 1, update }
}

/// The middle one of three, over its store.
struct Middle {
    member: ChainMember<Vec<u8>>,
    store: Store,
}

impl Middle {
    fn new() -> Self {
        let me = Place {
            target: TargetId(1),
            life: 1,
        };
        let store = Store::default();
        let mut middle = Self {
            member: ChainMember::new(me, &store),
            store,
        };
        let others = [ABOVE, BELOW].map(|target| Place { target, life: 1 });
        middle.input(Input::Table(Table {
            revision: 1,
            version: 1,
            members: vec![others[0], me, others[1]],
            ..Table::default()
        }));
        middle
    }

    /// It has caught up with an empty chain.
    fn complete() -> Self {
        let mut middle = Self::new();
        middle.receive(
            BELOW,
            Message::Versions {
                after: None,
                versions: Vec::new(),
                is_last: true,
            },
        );
        assert!(middle.member.is_complete());
        middle
    }

    fn input(&mut self, input: Input<Vec<u8>>) -> Vec<Effect<Vec<u8>>> {
        let mut effects = Vec::new();
        self.member.handle(input, &mut self.store, &mut effects);
        effects
    }

    fn receive(&mut self, from: TargetId, message: Message<Vec<u8>>) -> Vec<Effect<Vec<u8>>> {
        self.input(Input::Message {
            from,
            version: 1,
            message,
        })
    }

    /// A write comes down that builds on a content.
    fn update(&mut self, update: u64, base: Version) -> Vec<Effect<Vec<u8>>> {
        let edit = Edit::Write {
            offset: 0,
            bytes: vec![update as u8],
        };
        self.receive(
            ABOVE,
            Message::Update(Update {
                chunk: CHUNK,
                version: version(update),
                base,
                edit,
                records: Records::default(),
            }),
        )
    }

    fn commit(&mut self, update: u64, base: Version) {
        let (chunk, version) = (CHUNK, version(update));
        self.update(update, base);
        self.input(Input::Durable { chunk, version });
        self.receive(BELOW, Message::Done { chunk, version });
    }
}

fn send(to: TargetId, message: Message<Vec<u8>>) -> Effect<Vec<u8>> {
    Effect::Send {
        to,
        version: 1,
        message,
    }
}

#[test]
fn an_edit_whose_base_is_not_here_is_asked_for_whole() {
    let mut middle = Middle::complete();
    middle.commit(1, Version::NONE);
    let (chunk, version) = (CHUNK, version(3));
    let effects = middle.update(3, self::version(2));
    assert_eq!(effects, [send(ABOVE, Message::NeedsAll { chunk, version })]);
}

/// CRAQ-5
#[test]
fn a_member_that_catches_up_refuses_nothing() {
    let mut middle = Middle::new();
    middle.store.is_full = true;
    assert_eq!(middle.update(1, Version::NONE), []);
}

/// CRAQ-5
#[test]
fn what_was_refused_stays_refused() {
    let mut middle = Middle::complete();
    let refused = send(
        ABOVE,
        Message::Refused {
            chunk: CHUNK,
            version: version(1),
            why: ChainRefusal::Full,
        },
    );
    middle.store.is_full = true;
    let first = middle.update(1, Version::NONE);
    middle.store.is_full = false;
    let again = middle.update(1, Version::NONE);
    assert_eq!([first, again], [vec![refused.clone()], vec![refused]]);
    assert!(matches!(
        middle.update(2, Version::NONE)[..],
        [Effect::Send { to: BELOW, .. }]
    ));
}

/// CRAQ-6
#[test]
fn a_damaged_content_is_repaired_with_that_version_and_no_newer_one() {
    let mut middle = Middle::complete();
    middle.commit(1, Version::NONE);
    middle.update(2, version(1));
    let (chunk, version) = (CHUNK, version(2));
    middle.input(Input::Durable { chunk, version });
    let (chunk, version) = (CHUNK, self::version(1));
    let fetch = Message::Fetch {
        chunk,
        version: Some(version),
    };
    assert_eq!(
        middle.receive(BELOW, fetch),
        [Effect::Load { chunk, version }]
    );
}

/// CRAQ-6
#[test]
fn what_cannot_be_written_is_asked_for_and_prepared_whole() {
    let mut middle = Middle::complete();
    middle.update(1, Version::NONE);
    let (chunk, version) = (CHUNK, version(1));
    middle.store.lose(chunk);
    let asks = send(ABOVE, Message::NeedsAll { chunk, version });
    let lost = middle.input(Input::Lost { chunk, version });
    assert!(lost.contains(&asks), "{lost:?}");
    assert_eq!(middle.update(1, Version::NONE), [asks]);
    let whole = Message::Update(Update {
        chunk,
        version,
        base: Version::NONE,
        edit: Edit::Replace { content: vec![1] },
        records: Records::default(),
    });
    assert_eq!(middle.receive(ABOVE, whole), []);
    assert_eq!(middle.store.read(chunk, version), Some(vec![1]));
}

/// CRAQ-3
#[test]
fn a_member_is_done_when_its_own_disk_is() {
    let mut middle = Middle::complete();
    middle.update(1, Version::NONE);
    let (chunk, version) = (CHUNK, version(1));
    let done = Message::Done { chunk, version };
    assert_eq!(middle.receive(BELOW, done.clone()), []);
    let durable = Input::Durable { chunk, version };
    assert_eq!(middle.input(durable), [send(ABOVE, done)]);
}

/// CRAQ-2
#[test]
fn what_could_not_be_written_is_listed_all_the_same() {
    let mut middle = Middle::complete();
    middle.commit(1, Version::NONE);
    middle.update(2, version(1));
    middle.store.lose(CHUNK);
    let (chunk, version) = (CHUNK, version(2));
    middle.input(Input::Lost { chunk, version });
    let listed = Message::Versions {
        after: None,
        versions: vec![(chunk, version)],
        is_last: true,
    };
    let list = Message::List { after: None };
    assert_eq!(middle.receive(ABOVE, list), [send(ABOVE, listed)]);
}

/// CRAQ-7
#[test]
fn what_the_successor_needs_is_sent_though_another_content_turns_out_damaged() {
    let mut middle = Middle::complete();
    middle.commit(1, Version::NONE);
    middle.update(2, version(1));
    let (chunk, version) = (CHUNK, version(2));
    middle.input(Input::Durable { chunk, version });
    let load = Effect::Load { chunk, version };
    let needs_all = Message::NeedsAll { chunk, version };
    assert_eq!(middle.receive(BELOW, needs_all), [load]);
    // Of the committed content: somebody has read it meanwhile.
    middle.input(Input::Damaged { chunk });
    let content = vec![2];
    let loaded = Input::Loaded {
        chunk,
        version,
        content,
    };
    let sent = middle.input(loaded);
    let is_whole = |effect: &Effect<Vec<u8>>| {
        matches!(effect, Effect::Send { to: BELOW, message: Message::Update(update), .. }
            if matches!(update.edit, Edit::Replace { .. }))
    };
    assert!(sent.iter().any(is_whole), "{sent:?}");
}
