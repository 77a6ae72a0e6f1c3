//! Pages of a listing: so many objects that their bytes stay below a limit. How large objects are
//! is known only by reading some, so the first page is small, and one that is too large after all
//! is given up and asked for in smaller pieces.

use std::io;

use crate::limits::PAGE_BYTES;
use futures::{AsyncRead, AsyncReadExt};
use kube::api::ListParams;
use kube::core::Request;
use kube::{Api, Error, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Objects of the first page.
const FIRST: u32 = 4;
/// Objects of a page, however small they are.
const MOST: u32 = 512;

/// Number of objects that the next page asks for.
#[derive(Debug)]
pub(super) struct PageSize(u32);

/// Fields that are read of a page.
#[derive(Debug, Deserialize)]
pub(super) struct Page<K> {
    pub(super) metadata: PageMetadata,
    /// None or null where there are no objects.
    pub(super) items: Option<Vec<K>>,
}

/// Fields that are read of a ListMeta.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    /// Position of the next page; none or empty in the last one.
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl PageSize {
    /// Of a listing that has not begun.
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    /// Objects to ask for.
    pub(super) fn objects(&self) -> u32 {
        self.0
    }

    /// Takes over how large a page was; none: larger than may be.
    fn note(&mut self, bytes: Option<u64>) {
        self.0 = match bytes {
            None => (self.0 / 4).max(1),
            // Twice as many of that size would still do.
            Some(bytes) if bytes <= PAGE_BYTES / 2 => (self.0 * 2).min(MOST),
            Some(_) => self.0,
        };
    }

    fn most_bytes(&self) -> u64 {
        if self.0 == 1 { u64::MAX } else { PAGE_BYTES }
    }

    /// Reads a page; none if it has too many bytes: then the next one is to be smaller.
    pub(super) async fn read<K>(
        &mut self,
        api: &Api<K>,
        params: &ListParams,
    ) -> Result<Option<Page<K>>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
    {
        let request = Request::new(api.resource_url()).list(params);
        let request = request.map_err(Error::BuildRequest)?;
        let client = api.clone().into_client();
        let stream = client.request_stream(request).await?;
        let text = read_up_to(Box::pin(stream), self.most_bytes()).await;
        let text = text.map_err(Error::ReadEvents)?;
        self.note(text.as_ref().map(|text| text.len() as u64));
        let page = text.map(|text| serde_json::from_slice(&text));
        page.transpose().map_err(Error::SerdeError)
    }
}

/// All that a stream has; none if that is more than so many bytes.
async fn read_up_to(
    stream: impl AsyncRead + Unpin,
    most: u64,
) -> Result<Option<Vec<u8>>, io::Error> {
    let mut text = Vec::new();
    let mut stream = stream.take(most.saturating_add(1));
    let bytes = stream.read_to_end(&mut text).await? as u64;
    Ok((bytes <= most).then_some(text))
}
