// The check functions, one declaration each; check_table.cc has their names and reasons.
#pragma once

#include "daemon/preflight/check.h"

namespace tensorfold::preflight {

// system_checks.cc
Finding check_kernel(const Context&);
Finding check_kernel_hold(const Context&);
Finding check_cma(const Context&);
Finding check_page_size(const Context&);
Finding check_clock(const Context&);

// memory_checks.cc
Finding check_memory(const Context&);
Finding check_swap(const Context&);
Finding check_huge_pages(const Context&);
Finding check_fragmentation(const Context&);
Finding check_memory_killers(const Context&);

// gpu_checks.cc
Finding check_driver(const Context&);
Finding check_gpu_nodes(const Context&);
Finding check_gpu_clock(const Context&);
Finding check_gpu_processes(const Context&);
Finding check_display(const Context&);
Finding check_cuda_backend(const Context&);
Finding check_nccl_library(const Context&);

// service_checks.cc
Finding check_settings(const Context&);
Finding check_port(const Context&);
Finding check_other_servers(const Context&);
Finding check_memlock(const Context&);
Finding check_open_files(const Context&);
Finding check_oom_score(const Context&);

// disk_checks.cc
Finding check_disk_space(const Context&);
Finding check_disk_kind(const Context&);
Finding check_disk_rate(const Context&);
Finding check_model_files(const Context&);
Finding check_engram_files(const Context&);

// link_checks.cc
Finding check_rdma_ports(const Context&);
Finding check_rdma_gids(const Context&);
Finding check_mtu(const Context&);
Finding check_rdma_memory(const Context&);
Finding check_rdma_mtu(const Context&);
Finding check_rails(const Context&);
Finding check_link_apart(const Context&);

// network_checks.cc
Finding check_nccl_environment(const Context&);
Finding check_nccl_file(const Context&);
Finding check_firewall(const Context&);

// peer_checks.cc
Finding check_peer_ssh(const Context&);
Finding check_peer_version(const Context&);
Finding check_peer_kernel(const Context&);
Finding check_peer_driver(const Context&);
Finding check_peer_nccl(const Context&);
Finding check_peer_firmware(const Context&);
Finding check_peer_mtu(const Context&);
Finding check_peer_clock(const Context&);
Finding check_peer_weights(const Context&);
Finding check_peer_transfer(const Context&);
Finding check_peer_link(const Context&);

}  // namespace tensorfold::preflight
