// CUDA's opaque handles by their public names, so that a header can pass a stream on without CUDA's own headers.
#pragma once

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphExec_st;

namespace troupe::cuda {

using stream_handle = CUstream_st*;        // cudaStream_t
using event_handle = CUevent_st*;          // cudaEvent_t
using graph_handle = CUgraph_st*;          // cudaGraph_t
using graph_node_handle = CUgraphNode_st*; // cudaGraphNode_t
using graph_exec_handle = CUgraphExec_st*; // cudaGraphExec_t

} // namespace troupe::cuda
