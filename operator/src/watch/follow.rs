//! One kind: a listing, then one watch after the other from where the last one ended. Knows what
//! proves that a mirror is up to date. Leaves what an object means to `translate`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use daemon::chain;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::page::PageSize;
use crate::cluster::{key_of, now, version_of};
use crate::mirror::{Mirror, MirrorOwner, Mirrored};

/// The API server ends a watch after so long, and sends its position shortly before.
const WATCH: Duration = Duration::from_secs(25);
/// A watch that says nothing for so long is given up: its connection is dead.
const SILENCE: Duration = Duration::from_secs(30);
/// Within which a page, or the beginning of a watch, must come.
const ANSWER: Duration = Duration::from_secs(15);
/// Before another try after an error; doubled up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// The position is too old: what happened since is known only by listing.
const GONE: u16 = 410;
/// The API server does not know the kind.
const NO_SUCH_KIND: u16 = 404;

/// Which objects of a kind are watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scope {
    pub(super) labels: Option<&'static str>,
    pub(super) fields: Option<&'static str>,
    /// Whether nobody waits for a kind whose CRD is not installed: there is none of it. Of any
    /// other kind that is an error, after which what is known stays.
    pub(super) is_optional: bool,
}

/// A kind that is watched.
struct Watch<S, K, M, F> {
    api: Api<K>,
    scope: Scope,
    owner: Arc<S>,
    mirror: M,
    translate: F,
}

/// Keeps one mirror up to date for ever: `translate` says as what an object is kept, none when it
/// is none of ours.
pub(super) fn watch<S, K, T, M, F>(
    api: Api<K>,
    scope: Scope,
    owner: Arc<S>,
    mirror: M,
    translate: F,
) -> BoxFuture<'static, ()>
where
    S: MirrorOwner,
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Mirrored + Send + 'static,
    M: Fn(&mut S::Mirrors) -> &mut Mirror<T> + Send + Sync + 'static,
    F: Fn(K) -> Option<T> + Send + Sync + 'static,
{
    let watch = Watch {
        api,
        scope,
        owner,
        mirror,
        translate,
    };
    Box::pin(watch.run())
}

/// Why a watch did not go to its end.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the resource version is too old")]
    Gone,
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API server sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the watch ended early")]
    Early,
    #[error("{0}")]
    Reported(String),
}

impl<S, K, T, M, F> Watch<S, K, M, F>
where
    S: MirrorOwner,
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Mirrored + Send,
    M: Fn(&mut S::Mirrors) -> &mut Mirror<T> + Send + Sync,
    F: Fn(K) -> Option<T> + Send + Sync,
{
    /// Lists and watches for ever; lists again whenever that is asked for.
    async fn run(self) {
        let kind = K::kind(&());
        let mut asked = self.owner.listings();
        let mut pause = FIRST_RETRY;
        loop {
            let request = *asked.borrow_and_update();
            let mut position = match self.list(request).await {
                Ok(position) => position,
                Err(error) => {
                    warn!(%kind, error = %chain(&error), "failed to list, trying again");
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_RETRY);
                    continue;
                }
            };
            pause = FIRST_RETRY;
            loop {
                let ended = tokio::select! {
                    ended = self.follow(&mut position) => ended,
                    _ = asked.changed() => break,
                };
                match ended {
                    Ok(()) => pause = FIRST_RETRY,
                    Err(Error::Gone) => break,
                    Err(error) => {
                        warn!(%kind, error = %chain(&error), "watch failed, trying again");
                        sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_RETRY);
                    }
                }
            }
        }
    }

    /// Lists everything as it is now. Returns the position of the listing.
    async fn list(&self, request: u64) -> Result<String, Error> {
        self.with(|mirror| mirror.listing(request, now()));
        let mut params = ListParams {
            label_selector: self.scope.labels.map(str::to_owned),
            field_selector: self.scope.fields.map(str::to_owned),
            ..ListParams::default()
        };
        let mut size = PageSize::new();
        loop {
            params.limit = Some(size.objects());
            let page = timeout(ANSWER, size.read(&self.api, &params)).await;
            let page = match page.map_err(|_elapsed| Error::Silent(ANSWER))? {
                Ok(Some(page)) => page,
                Ok(None) => continue,
                Err(kube::Error::Api(status))
                    if status.code == NO_SUCH_KIND && self.scope.is_optional =>
                {
                    self.with(Mirror::listing_done);
                    self.owner.notify();
                    return Err(Error::Api(kube::Error::Api(status)));
                }
                Err(error) => return Err(error.into()),
            };
            for object in page.items.into_iter().flatten() {
                let (key, version) = (key_of(&object), version_of(&object));
                if let Some(value) = (self.translate)(object) {
                    self.with(|mirror| mirror.listed(key, version, value));
                }
            }
            params.continue_token = page.metadata.next.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let objects = self.with(|mirror| {
                    mirror.listing_done();
                    mirror.len()
                });
                info!(kind = %K::kind(&()), objects, "listed");
                self.owner.notify();
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }

    /// Watches from a position until the API server ends it.
    async fn follow(&self, position: &mut String) -> Result<(), Error> {
        let params = WatchParams {
            label_selector: self.scope.labels.map(str::to_owned),
            field_selector: self.scope.fields.map(str::to_owned),
            timeout: u32::try_from(WATCH.as_secs()).ok(),
            bookmarks: true,
            send_initial_events: false,
        };
        let began = Instant::now();
        let stream = timeout(ANSWER, self.api.watch(&params, position)).await;
        let stream = stream.map_err(|_elapsed| Error::Silent(ANSWER))?;
        self.read(stream.map_err(gone)?, began, position).await
    }

    /// Takes over what a watch shows that began at this moment.
    async fn read(
        &self,
        stream: impl Stream<Item = kube::Result<WatchEvent<K>>> + Send,
        began: Instant,
        position: &mut String,
    ) -> Result<(), Error> {
        let mut stream = std::pin::pin!(stream);
        loop {
            let event = timeout(SILENCE, stream.next()).await;
            let event = match event.map_err(|_elapsed| Error::Silent(SILENCE))? {
                Some(event) => event.map_err(gone)?,
                // Only the API server itself ends a watch when its time is over.
                None if began.elapsed() + Duration::from_secs(1) < WATCH => {
                    return Err(Error::Early);
                }
                None => {
                    self.with(|mirror| mirror.note_current(now()));
                    return Ok(());
                }
            };
            let news = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (key, version) = (key_of(&object), version_of(&object));
                    *position = object.meta().resource_version.clone().unwrap_or_default();
                    let value = (self.translate)(object);
                    self.with(|mirror| mirror.applied(key, version, value))
                }
                WatchEvent::Deleted(object) => {
                    let (key, version) = (key_of(&object), version_of(&object));
                    *position = object.meta().resource_version.clone().unwrap_or_default();
                    self.with(|mirror| mirror.deleted(&key, version))
                }
                WatchEvent::Bookmark(mark) => {
                    *position = mark.metadata.resource_version;
                    false
                }
                WatchEvent::Error(status) if status.code == GONE => return Err(Error::Gone),
                WatchEvent::Error(status) => return Err(Error::Reported(status.message.clone())),
            };
            self.with(|mirror| mirror.note_current(now()));
            if news {
                self.owner.notify();
            }
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Mirror<T>) -> R) -> R {
        act((self.mirror)(&mut self.owner.mirrors()))
    }
}

fn gone(error: kube::Error) -> Error {
    if matches!(&error, kube::Error::Api(status) if status.code == GONE) {
        Error::Gone
    } else {
        Error::Api(error)
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
