//! The controller's process as csi-provisioner sees it: over its socket, with volumes in a folder.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::fs;
use std::sync::Arc;

use csi::DRIVER_NAME;
use csi::pb::csi::controller_client::ControllerClient;
use csi::pb::csi::identity_client::IdentityClient;
use csi::pb::csi::volume_capability::{AccessMode, AccessType, Mount};
use csi::pb::csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Empty, GetCapacityRequest,
    ValidateVolumeCapabilitiesRequest, Volume, VolumeCapability, controller_service_capability,
    plugin_capability,
};
use csi::serve::serve_controller;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};

mod common;
use common::{DOWN, FolderStore, TOTAL_BYTES, connect};

const GIB: i64 = 1 << 30;

/// A controller that runs, and a client.
struct Running {
    folder: TempDir,
    shutdown: CancellationToken,
    served: JoinHandle<Result<(), csi::serve::Error>>,
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
}

impl Running {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (volumes, socket) = (
            folder.path().join("volumes"),
            folder.path().join("csi.sock"),
        );
        fs::create_dir(&volumes).unwrap();
        // A process that was killed leaves its file behind.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let store = Arc::new(FolderStore::new(volumes));
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve_controller(socket.clone(), store, shutdown.clone()));
        let channel = loop {
            // Nobody listens until the old file is gone.
            match connect(&socket).await {
                Ok(channel) => break channel,
                Err(error) => assert!(!served.is_finished(), "{error}"),
            }
            tokio::task::yield_now().await;
        };
        Self {
            folder,
            shutdown,
            served,
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel),
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.served.await.unwrap().unwrap();
        assert!(!self.folder.path().join("csi.sock").exists());
    }

    async fn create(&mut self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let created = self.controller.create_volume(request).await?;
        Ok(created.into_inner().volume.unwrap())
    }

    /// The text of a refusal, whose code has to be this.
    async fn refused(&mut self, request: CreateVolumeRequest, code: Code) -> String {
        text(self.create(request).await, code)
    }

    async fn left(&mut self) -> i64 {
        let request = GetCapacityRequest::default();
        let capacity = self.controller.get_capacity(request).await.unwrap();
        capacity.into_inner().available_capacity
    }
}

fn text<T: std::fmt::Debug>(result: Result<T, Status>, code: Code) -> String {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

fn capability(mode: i32) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type: Some(AccessType::Mount(Mount::default())),
    }
}

fn request(name: &str, required_bytes: i64, limit_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        volume_capabilities: vec![capability(5)],
        ..CreateVolumeRequest::default()
    }
}

fn with(mut request: CreateVolumeRequest, name: &str, value: &str) -> CreateVolumeRequest {
    request.parameters.insert(name.to_owned(), value.to_owned());
    request
}

#[tokio::test]
async fn the_driver_says_who_it_is_and_when_its_store_answers() {
    let mut running = Running::start().await;
    let identity = &mut running.identity;
    let plugin = identity
        .get_plugin_info(Empty {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(plugin.name, DRIVER_NAME);
    assert_eq!(plugin.vendor_version, env!("CARGO_PKG_VERSION"));
    let answer = identity.get_plugin_capabilities(Empty {}).await.unwrap();
    let capabilities = answer.into_inner().capabilities;
    let [capability] = &capabilities[..] else {
        panic!("{capabilities:?}");
    };
    let Some(plugin_capability::Type::Service(service)) = capability.r#type else {
        panic!("{capability:?}");
    };
    assert_eq!(service.r#type, 1, "CONTROLLER_SERVICE");

    let down = running.folder.path().join("volumes").join(DOWN);
    for is_down in [false, true] {
        if is_down {
            fs::write(&down, "").unwrap();
        }
        let probe = identity.probe(Empty {}).await.unwrap().into_inner();
        assert_eq!(probe.ready, Some(!is_down));
    }
    let refused = running.refused(request("a", 0, 0), Code::Unavailable).await;
    assert!(refused.contains("`down` is there; call again"), "{refused}");
    running.stop().await;
}

#[tokio::test]
async fn the_controller_says_what_it_offers_and_refuses_the_rest_with_advice() {
    let mut running = Running::start().await;
    let controller = &mut running.controller;
    let answer = controller
        .controller_get_capabilities(Empty {})
        .await
        .unwrap();
    let offered = answer.into_inner().capabilities.into_iter().map(|offered| {
        let Some(controller_service_capability::Type::Rpc(rpc)) = offered.r#type else {
            panic!("{offered:?}");
        };
        rpc.r#type
    });
    // CREATE_DELETE_VOLUME, GET_CAPACITY, SINGLE_NODE_MULTI_WRITER.
    assert_eq!(offered.collect::<Vec<_>>(), [1, 4, 13]);
    let refused = [
        controller.create_snapshot(Empty {}).await,
        controller.controller_expand_volume(Empty {}).await,
        controller.controller_modify_volume(Empty {}).await,
    ];
    for refused in refused {
        let text = text(refused, Code::Unimplemented);
        assert!(
            text.contains("are not offered; ") && text.contains("copy the files"),
            "{text}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_volume_is_made_once_and_deleted_once() {
    let mut running = Running::start().await;
    let volume = running.create(request("a", 5 * GIB, 0)).await.unwrap();
    assert_eq!(volume.capacity_bytes, 5 * GIB);
    for _ in 0..2 {
        let again = running.create(request("a", 5 * GIB, 0)).await.unwrap();
        assert_eq!(again, volume);
    }
    // What is there is within what is asked for.
    let within = running.create(request("a", 2 * GIB, 6 * GIB)).await;
    assert_eq!(within.unwrap(), volume);
    assert_eq!(running.left().await, TOTAL_BYTES as i64 - 5 * GIB);

    for other in [request("a", 6 * GIB, 0), request("a", 0, 4 * GIB)] {
        let text = running.refused(other.clone(), Code::AlreadyExists).await;
        let asked = match other.capacity_range.unwrap().required_bytes {
            0 => GIB,
            bytes => bytes,
        };
        for bytes in [5 * GIB, asked] {
            assert!(text.contains(&format!("{bytes} bytes")), "{text}");
        }
    }
    let other = with(request("a", 5 * GIB, 0), "mode", "0700");
    let text = running.refused(other, Code::AlreadyExists).await;
    assert!(
        text.contains("mode 0777, uid 0, gid 0") && text.contains("mode 0700"),
        "{text}"
    );

    for id in [&volume.volume_id, &volume.volume_id, "never/made", "\u{1}"] {
        let volume_id = id.to_owned();
        let request = DeleteVolumeRequest { volume_id };
        running.controller.delete_volume(request).await.unwrap();
    }
    assert_eq!(running.left().await, TOTAL_BYTES as i64);
    running.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_what_is_left() {
    let mut running = Running::start().await;
    let total = TOTAL_BYTES as i64;
    let text = running
        .refused(request("a", total + 1, 0), Code::OutOfRange)
        .await;
    assert!(
        text.contains(&format!("{total} of {total} bytes are left")),
        "{text}"
    );
    running.create(request("a", total - GIB, 0)).await.unwrap();
    let text = running
        .refused(request("b", 2 * GIB, 0), Code::ResourceExhausted)
        .await;
    assert!(
        text.contains(&format!("{GIB} of {total} bytes are left")),
        "{text}"
    );
    // What GetCapacity says is what fits.
    let left = running.left().await;
    running.create(request("b", left, 0)).await.unwrap();
    assert_eq!(running.left().await, 0);
    // A volume that is there is found although nothing is left.
    running.create(request("b", left, 0)).await.unwrap();
    let empty = running.refused(request("c", 3, 2), Code::OutOfRange).await;
    assert!(
        empty.contains("at least 3 bytes and at most 2 bytes"),
        "{empty}"
    );
    running
        .refused(request("c", -1, 0), Code::InvalidArgument)
        .await;
    running.stop().await;
}

#[tokio::test]
async fn what_a_claim_cannot_have_is_refused_by_name() {
    let mut running = Running::start().await;
    let asked = || request("a", 0, 0);
    let wrong = [
        (request("", 0, 0), "name is missing"),
        (request(&"n".repeat(129), 0, 0), "1 to 128 bytes"),
        (request("a\u{7}", 0, 0), "control characters"),
        (
            with(asked(), "replicas", "3"),
            "\"replicas\"; known are mode, uid, gid",
        ),
        (
            with(asked(), "mode", "rwx"),
            "mode of the StorageClass is \"rwx\"",
        ),
        (
            CreateVolumeRequest {
                volume_capabilities: Vec::new(),
                ..asked()
            },
            "volume_capability is missing",
        ),
        (
            CreateVolumeRequest {
                volume_capabilities: vec![capability(5), capability(9)],
                ..asked()
            },
            "access mode 9",
        ),
        (
            CreateVolumeRequest {
                volume_content_source: Some(Empty {}),
                ..asked()
            },
            "leave out dataSource",
        ),
        (
            CreateVolumeRequest {
                mutable_parameters: [("a".to_owned(), "b".to_owned())].into(),
                ..asked()
            },
            "leave out volumeAttributesClassName",
        ),
    ];
    for (request, expected) in wrong {
        let text = running.refused(request, Code::InvalidArgument).await;
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(running.left().await, TOTAL_BYTES as i64, "nothing was made");
    let class = with(asked(), "replicas", "3").parameters;
    let asked = GetCapacityRequest {
        parameters: class,
        ..GetCapacityRequest::default()
    };
    let refused = running.controller.get_capacity(asked).await;
    assert!(text(refused, Code::InvalidArgument).contains("\"replicas\""));
    let nameless = DeleteVolumeRequest::default();
    let refused = running.controller.delete_volume(nameless).await;
    assert_eq!(text(refused, Code::InvalidArgument), "volume_id is missing");
    running.stop().await;
}

#[tokio::test]
async fn a_use_of_a_volume_is_confirmed_or_it_is_said_why_not() {
    let mut running = Running::start().await;
    let made = with(request("a", 0, 0), "gid", "7");
    let parameters = made.parameters.clone();
    let volume_id = running.create(made).await.unwrap().volume_id;
    let asked = ValidateVolumeCapabilitiesRequest {
        volume_id,
        volume_capabilities: (1..=7).map(capability).collect(),
        parameters,
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let controller = &mut running.controller;
    let mut validate = async |request: ValidateVolumeCapabilitiesRequest| {
        let answer = controller.validate_volume_capabilities(request).await;
        answer.map(tonic::Response::into_inner)
    };
    let confirmed = validate(asked.clone()).await.unwrap().confirmed.unwrap();
    assert_eq!(confirmed.volume_capabilities, asked.volume_capabilities);
    assert_eq!(confirmed.parameters, asked.parameters);

    let unknown = [("a".to_owned(), "b".to_owned())];
    let mut others = vec![asked.clone(); 4];
    others[0].volume_capabilities.push(capability(8));
    others[1]
        .parameters
        .insert("gid".to_owned(), "8".to_owned());
    others[2].volume_context = unknown.clone().into();
    others[3].mutable_parameters = unknown.into();
    let whys = [
        "access mode 8",
        "gid 7, not mode 0777, uid 0, gid 8",
        "volume_context",
        "Attributes",
    ];
    for (other, why) in others.into_iter().zip(whys) {
        let answer = validate(other).await.unwrap();
        assert!(
            answer.confirmed.is_none() && answer.message.contains(why),
            "{answer:?}"
        );
    }
    let mut absent = asked.clone();
    absent.volume_id = "volume-0".to_owned();
    let refused = text(validate(absent).await, Code::NotFound);
    assert_eq!(refused, "there is no volume \"volume-0\"");
    let mut useless = asked;
    useless.volume_capabilities.clear();
    text(validate(useless).await, Code::InvalidArgument);
    running.stop().await;
}
