//! Ranks that ended well, between the planner's set and the text that the status shows: the form of
//! `completedIndexes` of a Kubernetes Job, such as `1,3-5,7`. Of 4,096 nodes it has 13 KB at most.

use std::collections::BTreeSet;

use crds::training_job::CompletedRanksStatus;
use scheduler::CompletedRanks;

/// No attempt has ranks from here on.
const RANKS: u32 = contract::assignment::MAX_NODES as u32;

/// As the API shows it.
pub fn to_api(completed: &CompletedRanks) -> CompletedRanksStatus {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in &completed.ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            Some(_) | None => runs.push((rank, rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    let runs: Vec<String> = runs.iter().map(text).collect();
    CompletedRanksStatus {
        attempt: completed.attempt,
        ranks: runs.join(","),
    }
}

/// As it was recorded; none when that is not what an attempt can have.
pub fn from_api(shown: &CompletedRanksStatus) -> Option<CompletedRanks> {
    let mut ranks = BTreeSet::new();
    for run in shown.ranks.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= RANKS {
            return None;
        }
        ranks.extend(first..=last);
    }
    Some(CompletedRanks {
        attempt: shown.attempt,
        ranks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(ranks: impl IntoIterator<Item = u32>) -> CompletedRanks {
        CompletedRanks {
            attempt: 3,
            ranks: ranks.into_iter().collect(),
        }
    }

    #[test]
    fn ranks_are_shown_as_a_job_shows_its_indexes_and_read_back_the_same() {
        for (ranks, text) in [
            (vec![0], "0"),
            (vec![1, 3, 4, 5, 7], "1,3-5,7"),
            (vec![0, 1, 4094, 4095], "0,1,4094,4095"),
        ] {
            let completed = completed(ranks);
            let shown = to_api(&completed);
            assert_eq!((shown.attempt, &*shown.ranks), (3, text));
            assert_eq!(from_api(&shown), Some(completed));
        }
    }

    #[test]
    fn whatever_ranks_of_4096_have_ended_their_text_is_short() {
        let all = || 0..4096_u32;
        for completed in [
            completed(all()),
            completed(all().filter(|rank| rank % 2 == 1)),
            // Most numbers that no range shortens.
            completed(all().filter(|rank| rank % 3 > 0)),
        ] {
            let shown = to_api(&completed);
            assert!(shown.ranks.len() < 13_000, "{} bytes", shown.ranks.len());
            assert_eq!(from_api(&shown), Some(completed));
        }
    }

    #[test]
    fn what_nobody_wrote_is_not_believed() {
        for text in ["", "x", "3-1", "0-99999999", "16384", "1,,2", "-1", "1-2-3"] {
            let shown = CompletedRanksStatus {
                attempt: 1,
                ranks: text.to_owned(),
            };
            assert_eq!(from_api(&shown), None, "{text}");
        }
    }
}
