//! Registered memory for payload whose own memory cannot be registered: it is copied here before it is sent.

use std::sync::Arc;

use super::Error;
use super::adapter::Adapter;
use crate::segment::{Segment, Writers};
use crate::verbs::{Access, RegionSource, RegisteredRegion, channel};

/// One is filled while another is sent. What finds none waits: this is for nodes that were not prepared.
const PLACES: usize = 2;

/// A few places of one chunk each.
#[derive(Debug)]
pub(super) struct Staging {
    region: Arc<RegisteredRegion>,
    segment: Segment,
    bytes: usize,
    used: [bool; PLACES],
}

impl Staging {
    pub(super) fn new(adapter: &Adapter, bytes: usize) -> Result<Self, Error> {
        let (size, writers) = (PLACES * bytes, Writers::Creator);
        let segment = Segment::create_at("fireflyer-staging", size, writers, &adapter.home)?;
        let region = RegisteredRegion::register(&adapter.domain, &segment, Access::default())
            .map_err(channel::Error::from)?;
        Ok(Self {
            region,
            segment,
            bytes,
            used: [false; PLACES],
        })
    }

    /// Copies a payload to a free place, if there is one; gives its number and what to send.
    pub(super) fn copy(&mut self, payload: &[u8]) -> Result<Option<(usize, RegionSource)>, Error> {
        let Some(place) = self.used.iter().position(|used| !used) else {
            return Ok(None);
        };
        let start = place * self.bytes;
        let into = self.segment.bytes_mut().get_mut(start..start + self.bytes);
        let into = into.and_then(|into| into.get_mut(..payload.len()));
        into.ok_or(Error::Payload("more than a chunk"))?
            .copy_from_slice(payload);
        self.used[place] = true;
        let source = self.region.source(start as u64, payload.len() as u32);
        Ok(Some((place, source.map_err(channel::Error::from)?)))
    }

    /// What was copied there has left.
    pub(super) fn free(&mut self, place: usize) {
        self.used[place] = false;
    }
}
