//! Follows the chain manager's map, over whichever connections it takes.

use std::sync::Arc;
use std::time::Duration;

use chain_link::ChainMap;
use storage_rpc::MapFollower;
use storage_rpc::pb::manager::WatchRequest;
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

/// How long after the end of a stream the next one is asked for.
const PAUSE: Duration = Duration::from_millis(200);

/// Follows it for ever: `service` says whose chains, 0 all of them.
pub async fn follow(
    mut manager: ChainManagerClient<Channel>,
    service: u32,
    mut take: impl FnMut(Arc<ChainMap>),
) {
    let mut follower = MapFollower::default();
    let mut is_lost = false;
    loop {
        follower.reconnect();
        match manager.watch(WatchRequest { service }).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                if std::mem::take(&mut is_lost) {
                    info!("the chain manager answers again");
                }
                loop {
                    let message = match stream.message().await {
                        Ok(Some(message)) => message,
                        Ok(None) => break,
                        Err(error) => {
                            debug!(%error, "the stream of the chain table ended");
                            break;
                        }
                    };
                    match follower.take(message) {
                        Ok(Some(map)) => take(Arc::new(map.clone())),
                        Ok(None) => {}
                        Err(error) => {
                            warn!(%error, "begins again");
                            break;
                        }
                    }
                }
            }
            Err(error) if !is_lost => {
                is_lost = true;
                warn!(%error, "the chain manager does not answer: goes on with what is known");
            }
            Err(error) => debug!(%error, "the chain manager does not answer"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
