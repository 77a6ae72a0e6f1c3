//! The chain manager's protocol in Rust.
// @generated from proto/manager.proto by `cargo xtask gen`; do not edit.

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RegisterRequest {
    /// The node, by which a service is known.
    #[prost(string, tag = "1")]
    pub node: ::prost::alloc::string::String,
    /// This start of the service: another number each time.
    #[prost(fixed64, tag = "2")]
    pub life: u64,
    /// Where other services dial it: IP address and port.
    #[prost(string, tag = "3")]
    pub member_address: ::prost::alloc::string::String,
    /// Where clients do.
    #[prost(string, tag = "4")]
    pub client_address: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "5")]
    pub paths: ::prost::alloc::vec::Vec<RegisteredPath>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RegisteredPath {
    #[prost(string, tag = "1")]
    pub path: ::prost::alloc::string::String,
    /// The target that is there; no bytes if the path is empty.
    #[prost(bytes = "vec", tag = "2")]
    pub target: ::prost::alloc::vec::Vec<u8>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RegisterResponse {
    /// The service's number.
    #[prost(uint32, tag = "1")]
    pub service: u32,
    /// In the order of the request.
    #[prost(message, repeated, tag = "2")]
    pub paths: ::prost::alloc::vec::Vec<PathAnswer>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PathAnswer {
    #[prost(enumeration = "path_answer::Action", tag = "1")]
    pub action: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub target: ::prost::alloc::vec::Vec<u8>,
    #[prost(string, tag = "3")]
    pub why: ::prost::alloc::string::String,
}
/// Nested message and enum types in `PathAnswer`.
pub mod path_answer {
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        Hash,
        PartialOrd,
        Ord,
        ::prost::Enumeration
    )]
    #[repr(i32)]
    pub enum Action {
        /// Leave it alone: `why` says what can be done.
        Offline = 0,
        /// Serve the target that is there.
        Serve = 1,
        /// Format the empty path as `target`, and register again.
        Format = 2,
    }
    impl Action {
        /// String value of the enum field names used in the ProtoBuf definition.
        ///
        /// The values are not transformed in any way and thus are considered stable
        /// (if the ProtoBuf definition does not change) and safe for programmatic use.
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::Offline => "OFFLINE",
                Self::Serve => "SERVE",
                Self::Format => "FORMAT",
            }
        }
        /// Creates an enum from field names used in the ProtoBuf definition.
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "OFFLINE" => Some(Self::Offline),
                "SERVE" => Some(Self::Serve),
                "FORMAT" => Some(Self::Format),
                _ => None,
            }
        }
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ReportRequest {
    #[prost(uint32, tag = "1")]
    pub service: u32,
    #[prost(message, repeated, tag = "2")]
    pub targets: ::prost::alloc::vec::Vec<TargetReport>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct TargetReport {
    #[prost(bytes = "vec", tag = "1")]
    pub target: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub capacity_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub used_bytes: u64,
    /// Why the target is offline; empty if it is served.
    #[prost(string, tag = "4")]
    pub offline: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ReportResponse {}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WatchRequest {
    /// Only chains with members on this service, and the services of their members; 0 for all.
    #[prost(uint32, tag = "1")]
    pub service: u32,
}
/// What is new since the message before. Nothing ever goes away but sessions. Revisions never fall on one stream; after
/// a new connection, perhaps to another manager, they may be older for a moment, and are skipped.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WatchResponse {
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Whether that is all of this revision. If not, more follows.
    #[prost(bool, tag = "2")]
    pub is_complete: bool,
    #[prost(message, repeated, tag = "3")]
    pub services: ::prost::alloc::vec::Vec<WatchedService>,
    /// Those whose members have all come; nobody is a member of the others.
    #[prost(message, repeated, tag = "4")]
    pub chains: ::prost::alloc::vec::Vec<WatchedChain>,
    /// All open sessions, if they have changed. They are valid in all chains.
    #[prost(message, optional, tag = "5")]
    pub sessions: ::core::option::Option<OpenSessions>,
    /// For who watches all chains. A list never changes; some of its chains may still wait for members.
    #[prost(message, repeated, tag = "6")]
    pub lists: ::prost::alloc::vec::Vec<WatchedList>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WatchedService {
    #[prost(uint32, tag = "1")]
    pub service: u32,
    #[prost(string, tag = "2")]
    pub member_address: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub client_address: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WatchedChain {
    #[prost(uint32, tag = "1")]
    pub chain: u32,
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// From head to tail.
    #[prost(message, repeated, tag = "3")]
    pub members: ::prost::alloc::vec::Vec<WatchedMember>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WatchedMember {
    #[prost(bytes = "vec", tag = "1")]
    pub target: ::prost::alloc::vec::Vec<u8>,
    #[prost(fixed64, tag = "2")]
    pub life: u64,
    #[prost(uint32, tag = "3")]
    pub service: u32,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WatchedList {
    #[prost(uint32, tag = "1")]
    pub list: u32,
    /// Ascending.
    #[prost(uint32, repeated, tag = "2")]
    pub chains: ::prost::alloc::vec::Vec<u32>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct OpenSessions {
    #[prost(uint64, repeated, tag = "1")]
    pub sessions: ::prost::alloc::vec::Vec<u64>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct OpenSessionRequest {
    /// One session for each name.
    #[prost(string, tag = "1")]
    pub client: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct OpenSessionResponse {
    /// Never used before, and never again.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// From this one on it is in the table.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct EndSessionRequest {
    #[prost(uint64, tag = "1")]
    pub session: u64,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct EndSessionResponse {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateChainsRequest {
    #[prost(string, tag = "1")]
    pub pool: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub chains: ::prost::alloc::vec::Vec<ChainSpec>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChainSpec {
    /// 24 bits.
    #[prost(uint32, tag = "1")]
    pub chain: u32,
    /// From head to tail.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub targets: ::prost::alloc::vec::Vec<::prost::alloc::vec::Vec<u8>>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CreateChainsResponse {
    /// The pool's newest list, which holds all its chains; 0 if it has none.
    #[prost(uint32, tag = "1")]
    pub list: u32,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListRequest {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListResponse {
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    #[prost(message, repeated, tag = "2")]
    pub services: ::prost::alloc::vec::Vec<ListedService>,
    #[prost(message, repeated, tag = "3")]
    pub targets: ::prost::alloc::vec::Vec<ListedTarget>,
    #[prost(message, repeated, tag = "4")]
    pub chains: ::prost::alloc::vec::Vec<ListedChain>,
    #[prost(message, repeated, tag = "5")]
    pub sessions: ::prost::alloc::vec::Vec<ListedSession>,
    #[prost(message, repeated, tag = "6")]
    pub lists: ::prost::alloc::vec::Vec<ListedChains>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListedService {
    #[prost(uint32, tag = "1")]
    pub service: u32,
    #[prost(string, tag = "2")]
    pub node: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub member_address: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub client_address: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListedTarget {
    #[prost(bytes = "vec", tag = "1")]
    pub target: ::prost::alloc::vec::Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub service: u32,
    /// Empty if another target is where it was.
    #[prost(string, tag = "3")]
    pub path: ::prost::alloc::string::String,
    /// Whether it came with its data once.
    #[prost(bool, tag = "4")]
    pub is_formatted: bool,
    /// Empty before its first chain.
    #[prost(string, tag = "5")]
    pub pool: ::prost::alloc::string::String,
    /// Absent if this manager has none.
    #[prost(message, optional, tag = "6")]
    pub report: ::core::option::Option<TargetReport>,
    /// How old the report is.
    #[prost(uint64, tag = "7")]
    pub report_age_ms: u64,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListedChain {
    #[prost(uint32, tag = "1")]
    pub chain: u32,
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// From head to tail. The life is 0 if the member has not come yet.
    #[prost(message, repeated, tag = "3")]
    pub members: ::prost::alloc::vec::Vec<WatchedMember>,
    /// Whether it waits for members that have not come once.
    #[prost(bool, tag = "4")]
    pub is_waiting: bool,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListedChains {
    #[prost(uint32, tag = "1")]
    pub list: u32,
    #[prost(string, tag = "2")]
    pub pool: ::prost::alloc::string::String,
    #[prost(uint32, repeated, tag = "3")]
    pub chains: ::prost::alloc::vec::Vec<u32>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListedSession {
    #[prost(uint64, tag = "1")]
    pub session: u64,
    #[prost(string, tag = "2")]
    pub client: ::prost::alloc::string::String,
}
/// Generated client implementations.
pub mod chain_manager_client {
    #![allow(
        unused_variables,
        dead_code,
        missing_docs,
        clippy::wildcard_imports,
        clippy::let_unit_value,
    )]
    use tonic::codegen::*;
    use tonic::codegen::http::Uri;
    #[derive(Debug, Clone)]
    pub struct ChainManagerClient<T> {
        inner: tonic::client::Grpc<T>,
    }
    impl ChainManagerClient<tonic::transport::Channel> {
        /// Attempt to create a new client by connecting to a given endpoint.
        pub async fn connect<D>(dst: D) -> Result<Self, tonic::transport::Error>
        where
            D: TryInto<tonic::transport::Endpoint>,
            D::Error: Into<StdError>,
        {
            let conn = tonic::transport::Endpoint::new(dst)?.connect().await?;
            Ok(Self::new(conn))
        }
    }
    impl<T> ChainManagerClient<T>
    where
        T: tonic::client::GrpcService<tonic::body::Body>,
        T::Error: Into<StdError>,
        T::ResponseBody: Body<Data = Bytes> + std::marker::Send + 'static,
        <T::ResponseBody as Body>::Error: Into<StdError> + std::marker::Send,
    {
        pub fn new(inner: T) -> Self {
            let inner = tonic::client::Grpc::new(inner);
            Self { inner }
        }
        pub fn with_origin(inner: T, origin: Uri) -> Self {
            let inner = tonic::client::Grpc::with_origin(inner, origin);
            Self { inner }
        }
        pub fn with_interceptor<F>(
            inner: T,
            interceptor: F,
        ) -> ChainManagerClient<InterceptedService<T, F>>
        where
            F: tonic::service::Interceptor,
            T::ResponseBody: Default,
            T: tonic::codegen::Service<
                http::Request<tonic::body::Body>,
                Response = http::Response<
                    <T as tonic::client::GrpcService<tonic::body::Body>>::ResponseBody,
                >,
            >,
            <T as tonic::codegen::Service<
                http::Request<tonic::body::Body>,
            >>::Error: Into<StdError> + std::marker::Send + std::marker::Sync,
        {
            ChainManagerClient::new(InterceptedService::new(inner, interceptor))
        }
        /// Compress requests with the given encoding.
        ///
        /// This requires the server to support it otherwise it might respond with an
        /// error.
        #[must_use]
        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
            self.inner = self.inner.send_compressed(encoding);
            self
        }
        /// Enable decompressing responses.
        #[must_use]
        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
            self.inner = self.inner.accept_compressed(encoding);
            self
        }
        /// Limits the maximum size of a decoded message.
        ///
        /// Default: `4MB`
        #[must_use]
        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
            self.inner = self.inner.max_decoding_message_size(limit);
            self
        }
        /// Limits the maximum size of an encoded message.
        ///
        /// Default: `usize::MAX`
        #[must_use]
        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
            self.inner = self.inner.max_encoding_message_size(limit);
            self
        }
        /// A service has started, or has formatted a path. It may ask again, also with the same words.
        pub async fn register(
            &mut self,
            request: impl tonic::IntoRequest<super::RegisterRequest>,
        ) -> std::result::Result<
            tonic::Response<super::RegisterResponse>,
            tonic::Status,
        > {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/Register",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "Register"));
            self.inner.unary(req, path, codec).await
        }
        /// What a service knows of its targets. Kept in memory, by this manager, until the next.
        pub async fn report(
            &mut self,
            request: impl tonic::IntoRequest<super::ReportRequest>,
        ) -> std::result::Result<tonic::Response<super::ReportResponse>, tonic::Status> {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/Report",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "Report"));
            self.inner.unary(req, path, codec).await
        }
        /// The chains that matter to the caller, at once and again whenever they change.
        pub async fn watch(
            &mut self,
            request: impl tonic::IntoRequest<super::WatchRequest>,
        ) -> std::result::Result<
            tonic::Response<tonic::codec::Streaming<super::WatchResponse>>,
            tonic::Status,
        > {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/Watch",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "Watch"));
            self.inner.server_streaming(req, path, codec).await
        }
        /// A client wants to write. An earlier session of its name ends.
        pub async fn open_session(
            &mut self,
            request: impl tonic::IntoRequest<super::OpenSessionRequest>,
        ) -> std::result::Result<
            tonic::Response<super::OpenSessionResponse>,
            tonic::Status,
        > {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/OpenSession",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "OpenSession"));
            self.inner.unary(req, path, codec).await
        }
        /// A session is over. It may have been before.
        pub async fn end_session(
            &mut self,
            request: impl tonic::IntoRequest<super::EndSessionRequest>,
        ) -> std::result::Result<
            tonic::Response<super::EndSessionResponse>,
            tonic::Status,
        > {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/EndSession",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "EndSession"));
            self.inner.unary(req, path, codec).await
        }
        /// Chains that should be there. Those that are there stay as they are.
        pub async fn create_chains(
            &mut self,
            request: impl tonic::IntoRequest<super::CreateChainsRequest>,
        ) -> std::result::Result<
            tonic::Response<super::CreateChainsResponse>,
            tonic::Status,
        > {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/CreateChains",
            );
            let mut req = request.into_request();
            req.extensions_mut()
                .insert(GrpcMethod::new("manager.ChainManager", "CreateChains"));
            self.inner.unary(req, path, codec).await
        }
        /// Everything there is, for people and for status.
        pub async fn list(
            &mut self,
            request: impl tonic::IntoRequest<super::ListRequest>,
        ) -> std::result::Result<tonic::Response<super::ListResponse>, tonic::Status> {
            self.inner
                .ready()
                .await
                .map_err(|e| {
                    tonic::Status::unknown(
                        format!("Service was not ready: {}", e.into()),
                    )
                })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = http::uri::PathAndQuery::from_static(
                "/manager.ChainManager/List",
            );
            let mut req = request.into_request();
            req.extensions_mut().insert(GrpcMethod::new("manager.ChainManager", "List"));
            self.inner.unary(req, path, codec).await
        }
    }
}
/// Generated server implementations.
pub mod chain_manager_server {
    #![allow(
        unused_variables,
        dead_code,
        missing_docs,
        clippy::wildcard_imports,
        clippy::let_unit_value,
    )]
    use tonic::codegen::*;
    /// Generated trait containing gRPC methods that should be implemented for use with ChainManagerServer.
    #[async_trait]
    pub trait ChainManager: std::marker::Send + std::marker::Sync + 'static {
        /// A service has started, or has formatted a path. It may ask again, also with the same words.
        async fn register(
            &self,
            request: tonic::Request<super::RegisterRequest>,
        ) -> std::result::Result<
            tonic::Response<super::RegisterResponse>,
            tonic::Status,
        >;
        /// What a service knows of its targets. Kept in memory, by this manager, until the next.
        async fn report(
            &self,
            request: tonic::Request<super::ReportRequest>,
        ) -> std::result::Result<tonic::Response<super::ReportResponse>, tonic::Status>;
        /// Server streaming response type for the Watch method.
        type WatchStream: tonic::codegen::tokio_stream::Stream<
                Item = std::result::Result<super::WatchResponse, tonic::Status>,
            >
            + std::marker::Send
            + 'static;
        /// The chains that matter to the caller, at once and again whenever they change.
        async fn watch(
            &self,
            request: tonic::Request<super::WatchRequest>,
        ) -> std::result::Result<tonic::Response<Self::WatchStream>, tonic::Status>;
        /// A client wants to write. An earlier session of its name ends.
        async fn open_session(
            &self,
            request: tonic::Request<super::OpenSessionRequest>,
        ) -> std::result::Result<
            tonic::Response<super::OpenSessionResponse>,
            tonic::Status,
        >;
        /// A session is over. It may have been before.
        async fn end_session(
            &self,
            request: tonic::Request<super::EndSessionRequest>,
        ) -> std::result::Result<
            tonic::Response<super::EndSessionResponse>,
            tonic::Status,
        >;
        /// Chains that should be there. Those that are there stay as they are.
        async fn create_chains(
            &self,
            request: tonic::Request<super::CreateChainsRequest>,
        ) -> std::result::Result<
            tonic::Response<super::CreateChainsResponse>,
            tonic::Status,
        >;
        /// Everything there is, for people and for status.
        async fn list(
            &self,
            request: tonic::Request<super::ListRequest>,
        ) -> std::result::Result<tonic::Response<super::ListResponse>, tonic::Status>;
    }
    #[derive(Debug)]
    pub struct ChainManagerServer<T> {
        inner: Arc<T>,
        accept_compression_encodings: EnabledCompressionEncodings,
        send_compression_encodings: EnabledCompressionEncodings,
        max_decoding_message_size: Option<usize>,
        max_encoding_message_size: Option<usize>,
    }
    impl<T> ChainManagerServer<T> {
        pub fn new(inner: T) -> Self {
            Self::from_arc(Arc::new(inner))
        }
        pub fn from_arc(inner: Arc<T>) -> Self {
            Self {
                inner,
                accept_compression_encodings: Default::default(),
                send_compression_encodings: Default::default(),
                max_decoding_message_size: None,
                max_encoding_message_size: None,
            }
        }
        pub fn with_interceptor<F>(
            inner: T,
            interceptor: F,
        ) -> InterceptedService<Self, F>
        where
            F: tonic::service::Interceptor,
        {
            InterceptedService::new(Self::new(inner), interceptor)
        }
        /// Enable decompressing requests with the given encoding.
        #[must_use]
        pub fn accept_compressed(mut self, encoding: CompressionEncoding) -> Self {
            self.accept_compression_encodings.enable(encoding);
            self
        }
        /// Compress responses with the given encoding, if the client supports it.
        #[must_use]
        pub fn send_compressed(mut self, encoding: CompressionEncoding) -> Self {
            self.send_compression_encodings.enable(encoding);
            self
        }
        /// Limits the maximum size of a decoded message.
        ///
        /// Default: `4MB`
        #[must_use]
        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
            self.max_decoding_message_size = Some(limit);
            self
        }
        /// Limits the maximum size of an encoded message.
        ///
        /// Default: `usize::MAX`
        #[must_use]
        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
            self.max_encoding_message_size = Some(limit);
            self
        }
    }
    impl<T, B> tonic::codegen::Service<http::Request<B>> for ChainManagerServer<T>
    where
        T: ChainManager,
        B: Body + std::marker::Send + 'static,
        B::Error: Into<StdError> + std::marker::Send + 'static,
    {
        type Response = http::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = BoxFuture<Self::Response, Self::Error>;
        fn poll_ready(
            &mut self,
            _cx: &mut Context<'_>,
        ) -> Poll<std::result::Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, req: http::Request<B>) -> Self::Future {
            match req.uri().path() {
                "/manager.ChainManager/Register" => {
                    #[allow(non_camel_case_types)]
                    struct RegisterSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::UnaryService<super::RegisterRequest>
                    for RegisterSvc<T> {
                        type Response = super::RegisterResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::RegisterRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::register(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = RegisterSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/Report" => {
                    #[allow(non_camel_case_types)]
                    struct ReportSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::UnaryService<super::ReportRequest>
                    for ReportSvc<T> {
                        type Response = super::ReportResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::ReportRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::report(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = ReportSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/Watch" => {
                    #[allow(non_camel_case_types)]
                    struct WatchSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::ServerStreamingService<super::WatchRequest>
                    for WatchSvc<T> {
                        type Response = super::WatchResponse;
                        type ResponseStream = T::WatchStream;
                        type Future = BoxFuture<
                            tonic::Response<Self::ResponseStream>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::WatchRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::watch(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = WatchSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.server_streaming(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/OpenSession" => {
                    #[allow(non_camel_case_types)]
                    struct OpenSessionSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::UnaryService<super::OpenSessionRequest>
                    for OpenSessionSvc<T> {
                        type Response = super::OpenSessionResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::OpenSessionRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::open_session(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = OpenSessionSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/EndSession" => {
                    #[allow(non_camel_case_types)]
                    struct EndSessionSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::UnaryService<super::EndSessionRequest>
                    for EndSessionSvc<T> {
                        type Response = super::EndSessionResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::EndSessionRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::end_session(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = EndSessionSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/CreateChains" => {
                    #[allow(non_camel_case_types)]
                    struct CreateChainsSvc<T: ChainManager>(pub Arc<T>);
                    impl<
                        T: ChainManager,
                    > tonic::server::UnaryService<super::CreateChainsRequest>
                    for CreateChainsSvc<T> {
                        type Response = super::CreateChainsResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::CreateChainsRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::create_chains(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = CreateChainsSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                "/manager.ChainManager/List" => {
                    #[allow(non_camel_case_types)]
                    struct ListSvc<T: ChainManager>(pub Arc<T>);
                    impl<T: ChainManager> tonic::server::UnaryService<super::ListRequest>
                    for ListSvc<T> {
                        type Response = super::ListResponse;
                        type Future = BoxFuture<
                            tonic::Response<Self::Response>,
                            tonic::Status,
                        >;
                        fn call(
                            &mut self,
                            request: tonic::Request<super::ListRequest>,
                        ) -> Self::Future {
                            let inner = Arc::clone(&self.0);
                            let fut = async move {
                                <T as ChainManager>::list(&inner, request).await
                            };
                            Box::pin(fut)
                        }
                    }
                    let accept_compression_encodings = self.accept_compression_encodings;
                    let send_compression_encodings = self.send_compression_encodings;
                    let max_decoding_message_size = self.max_decoding_message_size;
                    let max_encoding_message_size = self.max_encoding_message_size;
                    let inner = self.inner.clone();
                    let fut = async move {
                        let method = ListSvc(inner);
                        let codec = tonic_prost::ProstCodec::default();
                        let mut grpc = tonic::server::Grpc::new(codec)
                            .apply_compression_config(
                                accept_compression_encodings,
                                send_compression_encodings,
                            )
                            .apply_max_message_size_config(
                                max_decoding_message_size,
                                max_encoding_message_size,
                            );
                        let res = grpc.unary(method, req).await;
                        Ok(res)
                    };
                    Box::pin(fut)
                }
                _ => {
                    Box::pin(async move {
                        let mut response = http::Response::new(
                            tonic::body::Body::default(),
                        );
                        let headers = response.headers_mut();
                        headers
                            .insert(
                                tonic::Status::GRPC_STATUS,
                                (tonic::Code::Unimplemented as i32).into(),
                            );
                        headers
                            .insert(
                                http::header::CONTENT_TYPE,
                                tonic::metadata::GRPC_CONTENT_TYPE,
                            );
                        Ok(response)
                    })
                }
            }
        }
    }
    impl<T> Clone for ChainManagerServer<T> {
        fn clone(&self) -> Self {
            let inner = self.inner.clone();
            Self {
                inner,
                accept_compression_encodings: self.accept_compression_encodings,
                send_compression_encodings: self.send_compression_encodings,
                max_decoding_message_size: self.max_decoding_message_size,
                max_encoding_message_size: self.max_encoding_message_size,
            }
        }
    }
    /// Generated gRPC service name
    pub const SERVICE_NAME: &str = "manager.ChainManager";
    impl<T> tonic::server::NamedService for ChainManagerServer<T> {
        const NAME: &'static str = SERVICE_NAME;
    }
}
