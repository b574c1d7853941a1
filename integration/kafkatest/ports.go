package kafkatest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are chosen below the range from which Linux (32768 up) and macOS
// (49152 up) take the local ports of outgoing connections. A port from a
// listener on :0 would come from that range, and while its node is down, any
// connection could take it; then the node cannot start again.
const (
	minPort = 20000
	maxPort = 32767
)

// handedOut keeps clusters that start at the same time in one process apart.
// Two processes may still pick the same port: the node that comes second ends
// saying that it is in use, and the cluster is started again on other ports.
var handedOut = struct {
	sync.Mutex
	ports map[int]bool
}{ports: make(map[int]bool)}

// freePorts returns n ports of 127.0.0.1 on which nobody listens, to be given
// back by releasePorts.
func freePorts(n int) ([]int, error) {
	handedOut.Lock()
	defer handedOut.Unlock()
	var ports []int
	for range 100 * n {
		if len(ports) == n {
			break
		}
		port := minPort + rand.IntN(maxPort-minPort+1)
		if handedOut.ports[port] {
			continue
		}
		ln, err := net.Listen("tcp", localAddr(port))
		if err != nil {
			continue
		}
		ln.Close()
		handedOut.ports[port] = true
		ports = append(ports, port)
	}
	if len(ports) < n {
		for _, port := range ports {
			delete(handedOut.ports, port)
		}
		return nil, errors.New("kafkatest: no free port on 127.0.0.1 between " +
			strconv.Itoa(minPort) + " and " + strconv.Itoa(maxPort))
	}
	return ports, nil
}

func releasePorts(ports []int) {
	handedOut.Lock()
	defer handedOut.Unlock()
	for _, port := range ports {
		delete(handedOut.ports, port)
	}
}

func localAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
