// Entry point of every Boost.Test program.
#define BOOST_TEST_MODULE tensorfoldd
#include <boost/test/unit_test.hpp>
