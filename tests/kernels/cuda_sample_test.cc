// sample_rows on a GPU against the host's sampler: the same ids, counts and failures, bit for bit,
// over the random steps of tests/kernels/sample_rows_test.cc and at the size of the published
// model.
#include <boost/test/unit_test.hpp>

#include "kernels/cuda/sample_rows.h"
#include "tests/kernels/cuda_exl3_support.h"
#include "tests/kernels/sample_cases.h"

namespace tensorfold::test {
namespace {

BOOST_TEST_GLOBAL_FIXTURE(NeedsGpu);

template <typename T>
std::vector<T> filled(std::vector<T> values) {  // cudaMalloc of nothing gives no pointer
  if (values.empty()) values.resize(1);
  return values;
}

SampleOutcome on_gpu(const SampleCase& c) {
  DeviceArray<float> logits(c.logits);
  DeviceArray<SampleRow> rows(c.rows);
  DeviceArray<SampleChange> changes(filled(c.changes));
  DeviceArray<uint32_t> masks(filled(c.masks));
  DeviceArray<SampleSequence> sequences(c.sequences);
  DeviceArray<int32_t> drafts(filled(c.drafts));
  DeviceArray<int32_t> token(c.rows.size()), state(c.rows.size()), accepted(c.sequences.size());
  SampleRowsParams p;
  p.rows = static_cast<int>(c.rows.size());
  p.vocab = c.vocab;
  p.logits = logits.get();
  p.logits_stride = c.vocab;
  p.row = rows.get();
  p.change = changes.get();
  p.masks = masks.get();
  p.mask_words = c.mask_words();
  p.sequences = static_cast<int>(c.sequences.size());
  p.sequence = sequences.get();
  p.draft = drafts.get();
  p.token = token.get();
  p.state = state.get();
  p.accepted = accepted.get();
  TF_CUDA(cuda::sample_rows(p, nullptr));
  TF_CUDA(cudaDeviceSynchronize());
  return {token.host(), state.host(), accepted.host()};
}

}  // namespace

BOOST_AUTO_TEST_CASE(ids_of_the_hosts_sampler) {
  constexpr int kVocabularies[] = {1, 3, 33, 130, 700, 5000};
  SampleCases cases(std::random_device{}());
  for (int i = 0; i < 600; ++i) {
    const SampleCase c = cases.make(kVocabularies[i % 6], 16);
    BOOST_REQUIRE_EQUAL(differing_sequences(c, on_gpu(c)), 0);
  }
}

BOOST_AUTO_TEST_CASE(a_whole_vocabulary) {
  SampleCases cases(std::random_device{}());
  for (int i = 0; i < 8; ++i) {
    const SampleCase c = cases.make(129280, 4);
    BOOST_REQUIRE_EQUAL(differing_sequences(c, on_gpu(c)), 0);
  }
}

BOOST_AUTO_TEST_CASE(bounds_are_refused) {
  SampleRowsParams p;
  p.rows = 1;
  p.vocab = kSampleVocabMax + 1;
  BOOST_CHECK(cuda::sample_rows(p, nullptr) == cudaErrorInvalidValue);
}

}  // namespace tensorfold::test
