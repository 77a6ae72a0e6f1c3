//! What registrations and pools make of the table, case by case.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use chain_table::{
    ChainSpec, MOST_CHANGED, PathVerdict, RegisteredPath, Registration, TableAnswer, TableEvent,
    TableRecord, TableRefusal, TableState, TableUuid,
};

const A: TableUuid = TableUuid(0xa);
const B: TableUuid = TableUuid(0xb);
const C: TableUuid = TableUuid(0xc);

/// A service on `node` whose paths hold these targets. An empty path gets the UUID that its name says.
fn registration(node: &str, life: u64, paths: &[(&str, Option<TableUuid>)]) -> TableEvent {
    let path = |(path, target): &(&str, Option<TableUuid>)| RegisteredPath {
        path: (*path).to_owned(),
        target: *target,
        fresh: TableUuid(u128::from_str_radix(path.trim_start_matches('/'), 16).unwrap()),
    };
    TableEvent::Register(Registration {
        node: node.to_owned(),
        life,
        member_address: "10.0.0.1:1".to_owned(),
        client_address: "[fd00::1]:2".to_owned(),
        paths: paths.iter().map(path).collect(),
    })
}

fn creation(pool: &str, chains: &[(u32, &[TableUuid])]) -> TableEvent {
    let spec = |(chain, targets): &(u32, &[TableUuid])| ChainSpec {
        chain: *chain,
        targets: targets.to_vec(),
    };
    TableEvent::CreateChains {
        pool: pool.to_owned(),
        chains: chains.iter().map(spec).collect(),
    }
}

/// Steps until the event is complete; how many records were written.
fn run(state: &mut TableState, event: &TableEvent) -> Result<(TableAnswer, usize), TableRefusal> {
    let mut written = 0;
    loop {
        let step = state.step(event)?;
        assert!(step.records.len() <= MOST_CHANGED);
        written += step.records.len();
        step.records
            .into_iter()
            .for_each(|record| state.apply(record));
        if step.is_complete {
            return Ok((step.answer, written));
        }
    }
}

fn verdicts(state: &mut TableState, event: &TableEvent) -> Vec<PathVerdict> {
    match run(state, event).unwrap().0 {
        TableAnswer::Registered(_, verdicts) => verdicts,
        other @ (TableAnswer::Done | TableAnswer::Created(_) | TableAnswer::Opened(_)) => {
            panic!("{other:?}")
        }
    }
}

/// Three services with a formatted target each.
fn three() -> TableState {
    let mut state = TableState::default();
    for (node, path, target) in [("n1", "/a", A), ("n2", "/b", B), ("n3", "/c", C)] {
        let formatted = verdicts(&mut state, &registration(node, 1, &[(path, None)]));
        assert_eq!(formatted, [PathVerdict::Format(target)]);
        let served = verdicts(&mut state, &registration(node, 1, &[(path, Some(target))]));
        assert_eq!(served, [PathVerdict::Serve(target)]);
    }
    state
}

fn lives(state: &TableState, chain: u32) -> (u64, Vec<Option<u64>>) {
    let chain = &state.chains()[&chain];
    (
        chain.version,
        chain.members.iter().map(|member| member.life).collect(),
    )
}

#[test]
fn an_unknown_empty_path_is_formatted_as_one_target_however_often_it_asks() {
    let mut state = TableState::default();
    let empty = registration("n1", 1, &[("/a", None)]);
    assert_eq!(verdicts(&mut state, &empty), [PathVerdict::Format(A)]);
    // The answer was lost, or the service died before it had formatted.
    let revision = state.head().revision;
    let mut again = registration("n1", 2, &[("/a", None)]);
    if let TableEvent::Register(registration) = &mut again {
        registration.paths[0].fresh = B;
    }
    assert_eq!(verdicts(&mut state, &again), [PathVerdict::Format(A)]);
    assert_eq!(state.head().revision, revision);
    assert_eq!(state.targets()[&A].life, None);
}

#[test]
fn a_known_target_that_comes_back_empty_is_named_and_never_formatted() {
    let mut state = three();
    run(&mut state, &creation("p", &[(1, &[A, B, C])])).unwrap();
    let before = state.clone();
    let found = verdicts(&mut state, &registration("n1", 2, &[("/a", None)]));
    let [PathVerdict::Offline { target: A, why }] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(
        why.contains("/a") && why.contains(&A.to_string()) && why.contains("never formatted"),
        "{why}"
    );
    assert_eq!(state, before);
}

#[test]
fn a_target_of_another_table_and_a_copy_stay_out() {
    let mut state = three();
    let foreign = TableUuid(0xf);
    let paths = [("/1", Some(foreign)), ("/a", Some(A)), ("/2", Some(A))];
    let found = verdicts(&mut state, &registration("n1", 2, &paths));
    assert!(matches!(&found[0], PathVerdict::Offline { target, .. } if *target == foreign));
    assert_eq!(found[1], PathVerdict::Serve(A));
    let PathVerdict::Offline { target: A, why } = &found[2] else {
        panic!("{found:?}");
    };
    assert!(why.contains("/a"), "{why}");
    assert_eq!(state.targets()[&A].path.as_deref(), Some("/a"));
}

#[test]
fn a_chain_waits_until_all_its_members_have_come_with_their_data() {
    let mut state = three();
    verdicts(&mut state, &registration("n4", 9, &[("/d", None)]));
    run(&mut state, &creation("p", &[(1, &[A, B, TableUuid(0xd)])])).unwrap();
    assert!(!state.chains()[&1].is_complete());
    // It asks again before it has formatted: nothing has come.
    verdicts(&mut state, &registration("n4", 10, &[("/d", None)]));
    assert!(!state.chains()[&1].is_complete());
    verdicts(
        &mut state,
        &registration("n4", 10, &[("/d", Some(TableUuid(0xd)))]),
    );
    assert!(state.chains()[&1].is_complete());
}

#[test]
fn a_service_that_comes_back_gives_each_of_its_chains_a_version_once() {
    let mut state = three();
    run(
        &mut state,
        &creation("p", &[(1, &[A, B, C]), (2, &[C, A]), (3, &[B, C])]),
    )
    .unwrap();
    assert_eq!(lives(&state, 1), (1, vec![Some(1), Some(1), Some(1)]));
    let back = registration("n1", 7, &[("/a", Some(A))]);
    verdicts(&mut state, &back);
    assert_eq!(lives(&state, 1), (2, vec![Some(7), Some(1), Some(1)]));
    assert_eq!(lives(&state, 2), (2, vec![Some(1), Some(7)]));
    assert_eq!(lives(&state, 3), (1, vec![Some(1), Some(1)]));
    let before = state.clone();
    assert_eq!(verdicts(&mut state, &back), [PathVerdict::Serve(A)]);
    assert_eq!(state, before);
}

#[test]
fn a_service_of_a_thousand_chains_comes_back_in_steps() {
    let mut state = three();
    let targets: &[TableUuid] = &[A, B];
    let chains: Vec<_> = (0..1000).map(|chain| (chain, targets)).collect();
    let (_, written) = run(&mut state, &creation("p", &chains)).unwrap();
    assert!(written > 1000);
    verdicts(&mut state, &registration("n2", 5, &[("/b", Some(B))]));
    assert!((0..1000).all(|chain| lives(&state, chain) == (2, vec![Some(1), Some(5)])));
}

#[test]
fn a_disk_that_moves_takes_its_target_along() {
    let mut state = three();
    run(&mut state, &creation("p", &[(1, &[A, B])])).unwrap();
    let moved = verdicts(&mut state, &registration("n9", 3, &[("/9", Some(A))]));
    assert_eq!(moved, [PathVerdict::Serve(A)]);
    assert_eq!(state.service_of(A), Some(4));
    assert_eq!(lives(&state, 1), (2, vec![Some(3), Some(1)]));
    // Its old path is free: it was not the path's loss.
    let old = verdicts(&mut state, &registration("n1", 4, &[("/a", None)]));
    assert!(matches!(old[..], [PathVerdict::Format(_)]), "{old:?}");
    // But not to the node of another member.
    let beside = verdicts(
        &mut state,
        &registration("n2", 5, &[("/b", Some(B)), ("/9", Some(A))]),
    );
    let [
        PathVerdict::Serve(B),
        PathVerdict::Offline { target: A, why },
    ] = &beside[..]
    else {
        panic!("{beside:?}");
    };
    assert!(why.contains("chain 1"), "{why}");
}

#[test]
fn disks_that_change_places_keep_their_targets() {
    let mut state = TableState::default();
    let both = [("/a", Some(A)), ("/b", Some(B))];
    verdicts(
        &mut state,
        &registration("n1", 1, &[("/a", None), ("/b", None)]),
    );
    verdicts(&mut state, &registration("n1", 1, &both));
    let swapped = [("/a", Some(B)), ("/b", Some(A))];
    let served = verdicts(&mut state, &registration("n1", 2, &swapped));
    assert_eq!(served, [PathVerdict::Serve(B), PathVerdict::Serve(A)]);
    let place = |target| state.targets()[&target].path.clone().unwrap();
    assert_eq!([place(A), place(B)], ["/b", "/a"]);
}

#[test]
fn a_path_whose_target_is_at_another_path_now_is_free() {
    let mut state = TableState::default();
    verdicts(&mut state, &registration("n1", 1, &[("/a", None)]));
    // Formatted, but moved before it came: nobody else may become the same target.
    let moved = [("/b", Some(A)), ("/a", None)];
    let mut moved = registration("n1", 1, &moved);
    if let TableEvent::Register(registration) = &mut moved {
        registration.paths[1].fresh = C;
    }
    let found = verdicts(&mut state, &moved);
    assert_eq!(found, [PathVerdict::Serve(A), PathVerdict::Format(C)]);
}

#[test]
fn a_target_whose_place_is_taken_is_nowhere() {
    let mut state = three();
    verdicts(&mut state, &registration("n2", 2, &[("/1", Some(A))]));
    verdicts(&mut state, &registration("n2", 2, &[("/1", Some(B))]));
    assert_eq!(state.targets()[&A].path, None);
    assert_eq!(state.targets()[&B].path.as_deref(), Some("/1"));
}

#[test]
fn chains_that_cannot_be_are_refused_as_a_whole() {
    let mut state = three();
    verdicts(
        &mut state,
        &registration("n1", 1, &[("/a", Some(A)), ("/d", None)]),
    );
    run(&mut state, &creation("p", &[(1, &[A, B])])).unwrap();
    let unknown = TableUuid(0xf);
    for (chains, pool, part) in [
        (&[(2, &[A, C, A][..])][..], "p", "twice"),
        (&[(2, &[A, unknown])], "p", "is unknown"),
        (&[(2, &[C, A])], "q", "belongs to pool p"),
        (&[(2, &[A, TableUuid(0xd)])], "p", "both on service 1"),
        (&[(2, &[])], "p", "has 0 members"),
        (&[(1 << 24, &[A, B])], "p", "24 bits"),
        (&[(1, &[B, A])], "p", "is there with other targets"),
        (
            &[(2, &[A, C]), (2, &[B, C])],
            "p",
            "is there with other targets",
        ),
        (&[(2, &[A, C])], "", "name of a pool"),
    ] {
        let before = state.clone();
        let good: (u32, &[TableUuid]) = (3, &[C]);
        let all = [&[good], chains].concat();
        let refused = run(&mut state, &creation(pool, &all))
            .unwrap_err()
            .to_string();
        assert!(refused.contains(part), "{refused}");
        assert_eq!(state, before);
    }
    // The same again is no change.
    let before = state.clone();
    assert_eq!(
        run(&mut state, &creation("p", &[(1, &[A, B])])),
        Ok((TableAnswer::Created(1), 0))
    );
    assert_eq!(state, before);
}

#[test]
fn a_pool_whose_chains_become_more_gets_another_list_of_all_of_them() {
    let mut state = three();
    let created = |state: &mut TableState, pool: &str, chains: &[(u32, &[TableUuid])]| {
        let (answer, _) = run(state, &creation(pool, chains)).unwrap();
        let TableAnswer::Created(list) = answer else {
            panic!("{answer:?}");
        };
        list
    };
    assert_eq!(created(&mut state, "p", &[]), 0);
    assert_eq!(created(&mut state, "p", &[(9, &[A]), (3, &[A])]), 1);
    assert_eq!(created(&mut state, "q", &[(5, &[B])]), 2);
    assert_eq!(created(&mut state, "p", &[(3, &[A])]), 1);
    assert_eq!(created(&mut state, "p", &[(4, &[A]), (9, &[A])]), 3);
    assert_eq!(created(&mut state, "q", &[]), 2);
    let lists = state
        .lists()
        .values()
        .map(|list| (list.pool.as_str(), list.chains.clone()));
    let expected = [("p", vec![3, 9]), ("q", vec![5]), ("p", vec![3, 4, 9])];
    assert!(lists.eq(expected));
}

#[test]
fn a_list_is_made_when_all_chains_of_a_request_are_there() {
    let mut state = three();
    let chains: Vec<(u32, &[TableUuid])> = (0..300).map(|chain| (chain, &[A, B][..])).collect();
    let event = creation("p", &chains);
    let first = state.step(&event).unwrap();
    assert!(!first.is_complete);
    // The manager dies here; somebody asks for a part only.
    first
        .records
        .into_iter()
        .for_each(|record| state.apply(record));
    assert!(state.lists().is_empty());
    run(&mut state, &creation("p", &chains[..1])).unwrap();
    assert_eq!(state.lists()[&1].chains.len(), state.chains().len());
    run(&mut state, &event).unwrap();
    assert_eq!(state.lists()[&2].chains, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_pool_has_no_more_chains_than_a_list_holds() {
    let mut state = three();
    let chains: Vec<(u32, &[TableUuid])> = (0..4096).map(|chain| (chain, &[A][..])).collect();
    run(&mut state, &creation("p", &chains)).unwrap();
    let value = TableRecord::List(1, state.lists()[&1].clone())
        .value()
        .unwrap();
    assert!(value.len() < 40_000, "{} bytes", value.len());
    let refused = run(&mut state, &creation("p", &[(5000, &[A])])).unwrap_err();
    assert!(refused.to_string().contains("4097 chains"), "{refused}");
    run(&mut state, &creation("q", &[(5000, &[B])])).unwrap();
}

#[test]
fn registrations_that_cannot_be_are_refused() {
    let mut state = TableState::default();
    let refused = |state: &mut TableState, change: &dyn Fn(&mut Registration)| {
        let TableEvent::Register(mut good) = registration("n1", 1, &[("/a", None)]) else {
            panic!("a registration");
        };
        change(&mut good);
        run(state, &TableEvent::Register(good))
            .unwrap_err()
            .to_string()
    };
    for (change, part) in [
        (
            &(|it: &mut Registration| it.node.clear()) as &dyn Fn(&mut Registration),
            "node",
        ),
        (
            &|it| it.member_address = "storage-0:9000".to_owned(),
            "storage-0:9000",
        ),
        (
            &|it| it.paths.push(it.paths[0].clone()),
            "/a is given twice",
        ),
        (&|it| it.paths = vec![it.paths[0].clone(); 33], "33 paths"),
    ] {
        let text = refused(&mut state, change);
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(state, TableState::default());
}

#[test]
fn a_table_belongs_to_one_file_system() {
    let mut state = TableState::default();
    let begin = |file_system| TableEvent::Begin { file_system };
    assert_eq!(run(&mut state, &begin(A)).unwrap().1, 1);
    assert_eq!(run(&mut state, &begin(A)), Ok((TableAnswer::Done, 0)));
    let refused = run(&mut state, &begin(B)).unwrap_err();
    assert_eq!(
        refused,
        TableRefusal::OtherFileSystem { found: A, asked: B }
    );
}

/// Whoever changes these bytes has to read the old ones, too.
#[test]
fn records_keep_their_bytes() {
    let mut state = three();
    let written: Vec<TableRecord> = [
        registration("n1", u64::MAX, &[("/a", Some(A))]),
        creation("p", &[(0xabcdef, &[A, B])]),
        TableEvent::OpenSession {
            client: "n1".to_owned(),
        },
    ]
    .iter()
    .flat_map(|event| {
        let records = state.step(event).unwrap().records;
        records
            .clone()
            .into_iter()
            .for_each(|record| state.apply(record));
        records
    })
    .collect();
    let text = |record: &TableRecord| {
        let value = String::from_utf8(record.value().unwrap()).unwrap();
        format!("{} {value}", record.key())
    };
    let lines: Vec<String> = written.iter().map(text).collect();
    assert_eq!(
        lines,
        [
            r#"target/0000000000000000000000000000000a {"service":1,"path":"/a","life":18446744073709551615}"#,
            r#"head {"fileSystem":"00000000000000000000000000000000","revision":7,"lastSession":0,"lastService":3,"lastList":0}"#,
            r#"chain/abcdef {"version":1,"members":[{"target":"0000000000000000000000000000000a","life":18446744073709551615},{"target":"0000000000000000000000000000000b","life":1}]}"#,
            r#"target/0000000000000000000000000000000a {"service":1,"path":"/a","life":18446744073709551615,"pool":"p"}"#,
            r#"target/0000000000000000000000000000000b {"service":2,"path":"/b","life":1,"pool":"p"}"#,
            r#"list/00000001 {"pool":"p","chains":[11259375]}"#,
            r#"head {"fileSystem":"00000000000000000000000000000000","revision":8,"lastSession":0,"lastService":3,"lastList":1}"#,
            r#"session/0000000000000001 {"client":"n1"}"#,
            r#"head {"fileSystem":"00000000000000000000000000000000","revision":9,"lastSession":1,"lastService":3,"lastList":1}"#,
        ]
    );
    for record in &written {
        let value = record.value().unwrap();
        assert_eq!(
            TableRecord::parse(&record.key(), &value).as_ref(),
            Ok(record)
        );
    }
}

#[test]
fn a_record_that_cannot_be_read_is_named() {
    for (key, value) in [
        ("chain/000001", "{"),
        ("chain/x", "{}"),
        ("chian/000001", "{}"),
    ] {
        let damaged = TableState::load([(key, value.as_bytes())]).unwrap_err();
        assert!(damaged.to_string().contains(key), "{damaged}");
    }
}
